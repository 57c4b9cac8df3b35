/* The recipe reader: any text is read or refused; what is read survives being written and read
 * again. */
#include "driver.h"

#include "../one_setting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const seeds[] = {
    "[zoo]\narch = 64-16-8-10    # one line, one setting\ncount = 600\n",
    "# head\r\n[flow]\r\nrate = 2e-3\nmatched = yes\nname = \"a # \\\"b\\\"\"\nsolver = heun\n",
    "\xef\xbb\xbf[a]\n[b]\n\nx = .5 # y\n",
};

FUZZ_TEXTS(seeds)

static void ask(wf_recipe *recipe, const char *section, const char *key) {
    static const char *const names[] = {"euler", "heun", NULL};
    const char *text = NULL;
    double real = 0;
    int whole = 0;
    bool flag = false;
    int choice = 0;
    if (wf_recipe_string(NULL, recipe, section, key, &text) != WF_OK) abort();
    if (ask_real(NULL, recipe, section, key, -1e9, 1e9, &real) == WF_OK && !isfinite(real)) abort();
    if (ask_int(NULL, recipe, section, key, -5, 700, &whole) == WF_OK &&
        (whole < -5 || whole > 700))
        abort();
    ask_bool(NULL, recipe, section, key, &flag);
    ask_choice(NULL, recipe, section, key, names, &choice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static wf_ctx *ctx; /* so that the sentences are made, too */
    const wf_ctx_desc desc = {.threads = 1};
    if (ctx == NULL && wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    wf_recipe *recipe;
    if (wf_recipe_parse(ctx, "fuzz", (const char *)data, size, &recipe) != WF_OK) {
        if (recipe != NULL || wf_last_error(ctx)[0] == '\0') abort();
        return 0;
    }
    char assignment[256];
    size_t length = size < sizeof assignment - 1 ? size : sizeof assignment - 1;
    memcpy(assignment, data, length);
    assignment[length] = '\0';
    wf_recipe_override(ctx, recipe, assignment);
    ask(recipe, "zoo", "count");
    ask(recipe, "flow", "rate");
    ask(recipe, "b", "x");
    wf_recipe_finish(ctx, recipe);
    char *text = wf_recipe_text(recipe), *same = NULL;
    wf_recipe *again = NULL;
    if (text == NULL) abort();
    if (wf_recipe_parse(ctx, "again", text, strlen(text), &again) == WF_OK)
        same = wf_recipe_text(again);
    /* Only the growth of quoting can push a recipe over the limit of its size. */
    if (size < 65536 && (same == NULL || strcmp(text, same) != 0)) abort();
    free(text);
    free(same);
    wf_recipe_free(again);
    wf_recipe_free(recipe);
    return 0;
}
