/* dealt_cases: a program's cases dealt to processes, one per core, each with a context of its own on the GPU: most of the
 * time goes into the reference on the CPU. All processes walk the same list and count; a process checks the cases for which
 * my_case() says so. Only the first one's passed tests are shown, everybody's failures. */
#ifndef WF_TESTS_DEALT_CASES_H
#define WF_TESTS_DEALT_CASES_H

#include <sys/wait.h>
#include <unistd.h>

#include "wf_test.h"

enum { most_processes = 8 };
static int process, processes = 1, dealt;

static inline bool my_case(void) { return dealt++ % processes == process; }

/* WEFT_TEST_FILTER: one test alone. WEFT_CUDA_SHARE=K/N: this is process K of N that somebody else starts, for tools that
 * follow one process; false: nobody says so. */
static inline bool take_share(void) {
    cmocka_set_test_filter(getenv("WEFT_TEST_FILTER"));
    const char *share = getenv("WEFT_CUDA_SHARE");
    if (share == NULL) return false;
    if (sscanf(share, "%d/%d", &process, &processes) == 2 && process >= 0 && processes > process)
        return true;
    print_error("WEFT_CUDA_SHARE is K/N with 0 <= K < N, not %s\n", share);
    exit(2);
}

static inline int count_cores(int most) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > most ? most : (int)cores;
}

/* Runs `group` in every process; the number of failures, or 1 where another process failed. Before the GPU is first asked
 * for: its state does not outlive a fork. */
static inline int deal(int (*group)(void)) {
    pid_t others[most_processes];
    if (take_share()) return group();
    /* WEFT_CUDA_SMALL is for such tools too. */
    processes = getenv("WEFT_CUDA_SMALL") != NULL ? 1 : count_cores(most_processes);
    for (int k = 1; k < processes; k++) {
        others[k] = fork();
        if (others[k] < 0) abort();
        if (others[k] > 0) continue;
        process = k;
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(1);
        _exit(group() != 0);
    }
    int failed = group();
    for (int k = 1; k < processes; k++) {
        int status;
        if (waitpid(others[k], &status, 0) < 0 || status == 0) continue;
        print_error("process %d of %d failed: wait status %d\n", k, processes, status);
        if (failed == 0) failed = 1;
    }
    return failed;
}

#endif
