/* An operation run again over memory full of NaN: what a kernel reads before it wrote it shows in the results. */
#ifndef WF_TESTS_POISONED_CASE_H
#define WF_TESTS_POISONED_CASE_H

#include "ops_case.h"

enum { scratch_bytes = 4 << 20 };

static void poison(setup *s, void *data, size_t bytes) {
    static unsigned char nans[scratch_bytes];
    memset(nans, 0xff, nans[0] == 0xff ? 0 : sizeof nans);
    for (size_t done = 0; done < bytes; done += sizeof nans)
        copy_in(s, (char *)data + done, nans,
                bytes - done < sizeof nans ? bytes - done : sizeof nans);
}

/* Everything the arena hands out next is NaN. */
static void poison_scratch(setup *s) {
    wf_arena_mark mark = wf_arena_here(&s->tape.arena);
    for (int k = 0; k < 8; k++) {
        void *memory = wf_arena_alloc(&s->tape.arena, scratch_bytes);
        assert_non_null(memory);
        poison(s, memory, scratch_bytes);
    }
    wf_arena_rewind(&s->tape.arena, mark);
}

/* Forward once more over poisoned outputs, then backward; scratch poisoned too or as the last user left it. */
static void run_case(setup *s, bool poisoned) {
    const wf_op *op = s->tape.last;
    for (int i = 0; i < WF_OP_OUTPUTS; i++)
        if (op->out[i] != NULL)
            poison(s, op->out[i]->data,
                   (size_t)op->out[i]->rows * (size_t)op->out[i]->ld * s->tape.size);
    if (poisoned) poison_scratch(s);
    wf_arena_mark mark = wf_arena_here(&s->tape.arena);
    assert_true(s->tape.backend->forward[op->kind](op, &s->tape.arena));
    wf_arena_rewind(&s->tape.arena, mark);
    size_t count;
    free(seed_gradients(s, &count));
    if (poisoned) poison_scratch(s);
    assert_true(wf_tape_backward(&s->tape));
}

#endif
