/* named_cases: named cases of a test program, run by several processes, one per core.
 *
 * Each process has its own context on the GPU. Most of the time goes into the reference on the CPU,
 * hence the processes. All of them walk the same list of cases; my_case() says which of them checks
 * a case. Passed tests are shown by the first process, failures by every process.
 *
 * WEFT_TEST_FILTER=PATTERN  runs the tests whose name matches.
 * WEFT_TEST_CASES=LIST      runs the cases whose name matches one of the patterns, which commas
 *                           separate, in one process. Names have no commas.
 * A choice that nothing matches fails. */
#ifndef WF_TESTS_NAMED_CASES_H
#define WF_TESTS_NAMED_CASES_H

#include <fnmatch.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wf_test.h"

enum { most_processes = 8 };
static int process, processes = 1, cases_seen;

static inline bool name_matches(const char *patterns, const char *name) {
    char pattern[256];
    for (const char *from = patterns; *from != '\0';) {
        size_t length = strcspn(from, ",");
        assert_true(length < sizeof pattern);
        memcpy(pattern, from, length);
        pattern[length] = '\0';
        if (fnmatch(pattern, name, 0) == 0) return true;
        from += length + (from[length] == ',');
    }
    return false;
}

/* Whether this process checks the case of that name. */
__attribute__((format(printf, 1, 2))) static inline bool my_case(const char *format, ...) {
    char name[256];
    const char *chosen = getenv("WEFT_TEST_CASES");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (chosen != NULL && !name_matches(chosen, name)) return false;
    return cases_seen++ % processes == process;
}

static inline int count_cores(int most) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > most ? most : (int)cores;
}

/* The tests that WEFT_TEST_FILTER chooses. Exits where the choice is empty. */
#define run_chosen(tests, set_up, tear_down)                                                       \
    run_matching(tests, sizeof tests / sizeof *tests, set_up, tear_down)
static inline int run_matching(const struct CMUnitTest *tests, size_t count,
                               CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    const char *filter = getenv("WEFT_TEST_FILTER"), *cases = getenv("WEFT_TEST_CASES");
    size_t matching = 0;
    for (size_t i = 0; i < count; i++)
        matching += filter == NULL || fnmatch(filter, tests[i].name, 0) == 0;
    if (matching == 0) {
        print_error("WEFT_TEST_FILTER=%s matches no test\n", filter);
        exit(2);
    }
    cmocka_set_test_filter(filter);
    int failed = _cmocka_run_group_tests("tests", tests, count, set_up, tear_down);
    if (cases != NULL && cases_seen == 0) {
        print_error("WEFT_TEST_CASES=%s matches no case\n", cases);
        exit(2);
    }
    return failed;
}

/* Runs `group` in every process. Returns the number of failures, or 1 where another process failed.
 * To be called before the GPU is first asked for, because its state does not outlive a fork. Tools
 * that follow one process get one: they set WEFT_CUDA_SMALL or WEFT_TEST_CASES. */
static inline int run_in_processes(int (*group)(void)) {
    pid_t others[most_processes];
    bool one = getenv("WEFT_CUDA_SMALL") != NULL || getenv("WEFT_TEST_CASES") != NULL;
    processes = one ? 1 : count_cores(most_processes);
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
