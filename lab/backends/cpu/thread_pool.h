/* Threads that compute a step together, and wait for each other hundreds of times in it.
 *
 * How they wait decides what a step costs. Threads that sleep have to be woken, which takes longer than most waits.
 * Threads that spin, as OpenMP's do for milliseconds, keep a core from the very thread they wait for as soon as another
 * process is at work too. These spin for as long as threads usually differ, then yield their core to whatever is ready,
 * and sleep only between steps.
 */
#pragma once
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

enum { MAX_THREADS = 64, SPINS = 1000 /* some ten microseconds */, SPIN_NANOSECONDS = 3000000 /* then sleep */ };

typedef void ThreadFunction(void *argument);

static _Thread_local int rank = 0, ranks = 1; /* this thread's number in its team, and the team's size */

static struct {
    pthread_mutex_t busy; /* one caller at a time: another one computes alone */
    pthread_mutex_t lock; /* for threads that sleep */
    pthread_cond_t begun;
    int started; /* threads besides the caller's; all take part in every round, if only to leave it at once */
    unsigned rounds;
    int wanted, unfinished;
    ThreadFunction *work;
    void *argument;
    fenv_t modes; /* the caller's: how numbers are rounded, and whether denormal ones are zero */
    unsigned barriers, arrived;
} team = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER};

static inline unsigned load_acquire(const unsigned *shared) { return __atomic_load_n(shared, __ATOMIC_ACQUIRE); }

/* Spin once, or yield after SPINS; returns whether it only spun. */
static inline int wait_briefly(int *spins) {
    if (*spins >= SPINS) return sched_yield(), 0;
    ++*spins;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    return 1;
}

/* Return when the whole team has called it. */
static void barrier(void) {
    if (ranks == 1) return;
    const unsigned current = load_acquire(&team.barriers);
    if (__atomic_add_fetch(&team.arrived, 1, __ATOMIC_ACQ_REL) == (unsigned)ranks) {
        __atomic_store_n(&team.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team.barriers, current + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; load_acquire(&team.barriers) == current;) wait_briefly(&spins);
}

/* This thread's share of n pieces that take equally long: from share_begin(n) up to but not including share_end(n). */
static inline int share_begin(int n) { return (int)((int64_t)n * rank / ranks); }
static inline int share_end(int n) { return (int)((int64_t)n * (rank + 1) / ranks); }

/* The next of several pieces that do not take equally long, which all threads claim from the same counter. */
static inline int claim_next(int *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Return when a round after the last one has begun. */
static void wait_for_work(unsigned last_round) {
    int64_t since = 0;
    for (int spins = 0; load_acquire(&team.rounds) == last_round;) {
        if (wait_briefly(&spins)) continue;
        if (!since) since = nanoseconds();
        if (nanoseconds() - since < SPIN_NANOSECONDS) continue;
        pthread_mutex_lock(&team.lock);
        while (load_acquire(&team.rounds) == last_round) pthread_cond_wait(&team.begun, &team.lock);
        pthread_mutex_unlock(&team.lock);
    }
}

/* `argument`: the thread's rank, and how many rounds began before its first. */
static void *thread_main(void *argument) {
    rank = (int)((uintptr_t)argument % MAX_THREADS);
    for (unsigned last_round = (unsigned)((uintptr_t)argument / MAX_THREADS);; last_round++) {
        wait_for_work(last_round);
        ranks = team.wanted;
        if (rank < ranks) fesetenv(&team.modes), team.work(team.argument);
        __atomic_sub_fetch(&team.unfinished, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* A forked process has none of its parent's threads. */
static void reset_after_fork(void) {
    pthread_mutex_init(&team.busy, NULL), pthread_mutex_init(&team.lock, NULL), pthread_cond_init(&team.begun, NULL);
    team.started = team.rounds = team.arrived = 0;
}

static void start_threads(int count) {
    static int forks;
    if (!forks) forks = !pthread_atfork(NULL, NULL, reset_after_fork);
    for (pthread_t thread; team.started < count; team.started++) {
        const uintptr_t argument = (uintptr_t)team.rounds * MAX_THREADS + team.started + 1;
        if (pthread_create(&thread, NULL, thread_main, (void *)argument)) return;
        pthread_detach(thread);
    }
}

/* Call `work` on `threads` threads, this one among them; fewer if no more can be had. */
static void run_on_threads(int threads, ThreadFunction *work, void *argument) {
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > 1 && !pthread_mutex_trylock(&team.busy)) {
        start_threads(threads - 1);
        ranks = team.wanted = threads <= team.started ? threads : team.started + 1;
        team.work = work, team.argument = argument, team.unfinished = team.started;
        fegetenv(&team.modes);
        pthread_mutex_lock(&team.lock);
        __atomic_add_fetch(&team.rounds, 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&team.begun);
        pthread_mutex_unlock(&team.lock);
        work(argument);
        for (int spins = 0; __atomic_load_n(&team.unfinished, __ATOMIC_ACQUIRE);) wait_briefly(&spins);
        ranks = 1;
        pthread_mutex_unlock(&team.busy);
    } else
        work(argument);
}
