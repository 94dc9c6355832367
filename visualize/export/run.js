// A run of the site, with its player.

mount("stage", document.querySelector("#stage"))(document.querySelector("#transcript").textContent);
