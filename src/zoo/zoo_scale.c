/* zoo_scale: how the networks of a collection want their inputs (weft/zoo.h). */
#include "weft/data.h"
#include "weft/zoo.h"

#include <stdio.h>
#include <string.h>

/* Behind the first "scale": of the text. Without a reader of JSON, which needs memory: a lack of it
 * would look like a collection that does not say its scale. */
static bool scale_of_preparation(const char *json, wf_scale *out) {
    static const char key[] = "\"scale\"";
    char name[32];
    wf_data_desc desc;
    for (const char *at = json; (at = strstr(at, key)) != NULL;) {
        at += sizeof key - 1;
        at += strspn(at, " ");
        if (*at != ':') continue; /* a value of that name */
        at += 1 + strspn(at + 1, " ");
        size_t length = *at == '"' ? strcspn(at + 1, "\"") : sizeof name;
        if (length >= sizeof name) return false;
        snprintf(name, sizeof name, "%.*s", (int)length, at + 1);
        if (!wf_setting_parse(wf_settings_find(wf_data_settings(), "scale"), name, &desc))
            return false;
        *out = desc.scale;
        return true;
    }
    return false;
}

bool wf_zoo_scale(const wf_zoo *zoo, wf_scale *out) {
    const char *text = wf_zoo_meta(zoo, "weft.scale"),
               *fitted = wf_zoo_meta(zoo, "weft.preparation");
    wf_data_desc desc;
    if (text != NULL &&
        wf_setting_parse(wf_settings_find(wf_data_settings(), "scale"), text, &desc)) {
        *out = desc.scale;
        return true;
    }
    return fitted != NULL && scale_of_preparation(fitted, out);
}
