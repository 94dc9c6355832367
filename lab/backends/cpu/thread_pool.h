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

enum { MOST_THREADS = 64, SPINS = 1000 /* some ten microseconds */, PATIENCE = 3000000 /* nanoseconds, then sleep */ };

typedef void Work(void *its);

static _Thread_local int rank = 0, ranks = 1; /* this thread's number in its team, and the team's size */

static struct {
    pthread_mutex_t busy; /* one caller at a time: another one computes alone */
    pthread_mutex_t lock; /* for threads that sleep */
    pthread_cond_t begun;
    int members; /* threads besides the caller's; all take part in every round, if only to say they are not wanted */
    unsigned rounds;
    int wanted, unfinished;
    Work *work;
    void *its;
    fenv_t modes; /* the caller's: how numbers are rounded, and whether denormal ones are zero */
    unsigned meetings, arrived;
} team = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER};

static inline unsigned now(const unsigned *shared) { return __atomic_load_n(shared, __ATOMIC_ACQUIRE); }

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

/* A barrier: returns when the whole team has called it. */
static void meet(void) {
    if (ranks == 1) return;
    const unsigned meeting = now(&team.meetings);
    if (__atomic_add_fetch(&team.arrived, 1, __ATOMIC_ACQ_REL) == (unsigned)ranks) {
        __atomic_store_n(&team.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team.meetings, meeting + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; now(&team.meetings) == meeting;) wait_briefly(&spins);
}

/* This thread's share of n pieces that take equally long: from first_of(n) up to but not including end_of(n). */
static inline int first_of(int n) { return (int)((int64_t)n * rank / ranks); }
static inline int end_of(int n) { return (int)((int64_t)n * (rank + 1) / ranks); }

/* The next of several pieces that do not take equally long, which all threads claim from the same counter. */
static inline int claim(int *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Returns when a round after the one that is `known` has begun. */
static void wait_for_work(unsigned known) {
    int64_t since = 0;
    for (int spins = 0; now(&team.rounds) == known;) {
        if (wait_briefly(&spins)) continue;
        if (!since) since = nanoseconds();
        if (nanoseconds() - since < PATIENCE) continue;
        pthread_mutex_lock(&team.lock);
        while (now(&team.rounds) == known) pthread_cond_wait(&team.begun, &team.lock);
        pthread_mutex_unlock(&team.lock);
    }
}

/* `its`: the member's rank, and how many rounds began before its first. */
static void *member(void *its) {
    rank = (int)((uintptr_t)its % MOST_THREADS);
    for (unsigned known = (unsigned)((uintptr_t)its / MOST_THREADS);; known++) {
        wait_for_work(known);
        ranks = team.wanted;
        if (rank < ranks) fesetenv(&team.modes), team.work(team.its);
        __atomic_sub_fetch(&team.unfinished, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* A forked process has none of its parent's threads. */
static void forget(void) {
    pthread_mutex_init(&team.busy, NULL), pthread_mutex_init(&team.lock, NULL), pthread_cond_init(&team.begun, NULL);
    team.members = team.rounds = team.arrived = 0;
}

static void recruit(int members) {
    static int forks;
    if (!forks) forks = !pthread_atfork(NULL, NULL, forget);
    for (pthread_t thread; team.members < members; team.members++) {
        const uintptr_t its = (uintptr_t)team.rounds * MOST_THREADS + team.members + 1;
        if (pthread_create(&thread, NULL, member, (void *)its)) return;
        pthread_detach(thread);
    }
}

/* Have `threads` threads, this one among them, call `work`; fewer if no more can be had. */
static void together(int threads, Work *work, void *its) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > 1 && !pthread_mutex_trylock(&team.busy)) {
        recruit(threads - 1);
        ranks = team.wanted = threads <= team.members ? threads : team.members + 1;
        team.work = work, team.its = its, team.unfinished = team.members;
        fegetenv(&team.modes);
        pthread_mutex_lock(&team.lock);
        __atomic_add_fetch(&team.rounds, 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&team.begun);
        pthread_mutex_unlock(&team.lock);
        work(its);
        for (int spins = 0; __atomic_load_n(&team.unfinished, __ATOMIC_ACQUIRE);) wait_briefly(&spins);
        ranks = 1;
        pthread_mutex_unlock(&team.busy);
    } else
        work(its);
}
