/* numbers: lists of numbers on the command line. */
#include "run/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

wf_status wf__run_numbers(wf_run_app *app, const char *what, const char *text, float *out, int most,
                          int *count) {
    *count = 0;
    for (const char *at = text;;) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || !isfinite(value) || (*end != ',' && *end != '\0'))
            return wf__run_fail(app, WF_ERR_USAGE, "%s needs numbers joined by commas, not \"%s\"",
                                what, text);
        if (*count == most)
            return wf__run_fail(app, WF_ERR_USAGE, "%s has more than %d numbers", what, most);
        out[(*count)++] = (float)value;
        if (*end == '\0') return WF_OK;
        at = end + 1;
    }
}

json_t *wf__run_numbers_to_json(const float *numbers, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(list, wf__run_json_number(numbers[i]));
    return list;
}
