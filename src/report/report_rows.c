/* report_rows: what each row of the table is, for readers who have never seen one. Rows of one kind
 * (perturbation-0.05, perturbation-0.10 ...) share a line. */
#include "report/page.h"
#include "weft/generator.h"

#include <stdlib.h>
#include <string.h>

static const char refined[] = "-refined";

/* The registered kind that a row is of; NULL: none. *rest is what follows the kind's name. */
static const wf_generator_kind *kind_of(const char *row, const char **rest) {
    const wf_generator_kind *found = NULL;
    size_t longest = 0;
    for (int i = 0; i < wf_generator_count(); i++) {
        const wf_generator_kind *kind = wf_generator_at(i);
        size_t length = strlen(kind->name);
        if (length < longest || strncmp(row, kind->name, length) != 0 ||
            (row[length] != '\0' && row[length] != '-'))
            continue;
        found = kind;
        longest = length;
    }
    if (found != NULL) *rest = row + longest;
    return found;
}

/* What the networks of an entry are; NULL where nothing is known. */
static const char *meaning_of(const wf_report_entry *entry) {
    switch (entry->role) {
    case WF_REPORT_REFERENCE: return "the trained networks themselves, each against the others";
    case WF_REPORT_HELD_OUT:
        return "trained in the same way and never shown to the generator: the best one can hope "
               "for";
    case WF_REPORT_GENERATED:
    case WF_REPORT_CONTROL: break;
    }
    const char *rest = "";
    const wf_generator_kind *kind = kind_of(entry->row->name, &rest);
    if (kind == NULL) return NULL;
    if (strcmp(rest, refined) == 0)
        return "drawn in the same way, then given some noise and solved again from there";
    if (kind->parameter != NULL && rest[0] == '\0') return "the best of its rows by JWS";
    return kind->about;
}

void wf__report_rows(wf__page *page, const wf_report_desc *desc) {
    const char *before = NULL;
    bool open = false;
    for (int i = 0; i < desc->n_entries; i++) {
        const char *meaning = meaning_of(&desc->entries[i]);
        if (meaning == NULL) continue;
        if (!open) wf__page_add(page, "<h3>What the rows are</h3><dl class=\"rows\">");
        bool same = before != NULL && strcmp(before, meaning) == 0;
        if (same) wf__page_add(page, ", ");
        else {
            if (before != NULL) {
                wf__page_add(page, "</dt><dd>");
                wf__page_escaped(page, before);
                wf__page_add(page, "</dd></div>");
            }
            wf__page_add(page, "<div><dt>");
        }
        wf__page_escaped(page, desc->entries[i].row->name);
        before = meaning;
        open = true;
    }
    if (!open) return;
    wf__page_add(page, "</dt><dd>");
    wf__page_escaped(page, before);
    wf__page_add(page, "</dd></div></dl>\n");
}
