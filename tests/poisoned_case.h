/* An operation run again over memory full of NaN: what a kernel reads before it wrote it shows in
 * the results. */
#ifndef WF_TESTS_POISONED_CASE_H
#define WF_TESTS_POISONED_CASE_H

#include "ops_case.h"

enum { poison_bytes = 1 << 20, row_values = 4096 };

static void poison(setup *s, void *data, size_t bytes) {
    static unsigned char nans[poison_bytes];
    memset(nans, 0xff, nans[0] == 0xff ? 0 : sizeof nans);
    for (size_t done = 0; done < bytes; done += sizeof nans)
        copy_in(s, (char *)data + done, nans,
                bytes - done < sizeof nans ? bytes - done : sizeof nans);
}

/* Everything the arena hands out next is NaN, written on the backend: copies of a row, small ones
 * first, so that little of a block stays behind its last. */
static void poison_scratch(setup *s) {
    static const int pieces[][2] = {{16, 1}, {4, 16}, {7, 256}}; /* so many of so many rows */
    wf_tape_mark mark = wf_tape_here(&s->tape);
    wf_op *last = s->tape.last;
    settle(s);
    wf_tensor *row = wf_tape_blank(&s->tape, 1, row_values);
    assert_non_null(row);
    memset(row->data, 0xff, row_values * s->tape.size);
    row = wf_tape_filled(&s->tape, row);
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++)
        for (int i = 0; i < pieces[k][0]; i++) wf_gather(&s->tape, row, pieces[k][1], NULL);
    assert_false(s->tape.failed);
    assert_true(wf_cuda_download(s->tape.backend->device, NULL, NULL, 0));
    wf_tape_rewind(&s->tape, mark);
    s->tape.last = last;
}

/* Forward once more over poisoned outputs, then backward; scratch poisoned too or as the last user
 * left it. Tools that slow the program down (WEFT_CUDA_SMALL) look at memory themselves. */
static void run_case(setup *s, bool poisoned) {
    const wf_op *op = s->tape.last;
    poisoned = poisoned && getenv("WEFT_CUDA_SMALL") == NULL;
    settle(s);
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
