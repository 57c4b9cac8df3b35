/* zoo_scale: how the networks of a collection want their inputs (weft/zoo.h). */
#include "data/prepare.h"
#include "weft/zoo.h"

bool wf_zoo_scale(const wf_zoo *zoo, wf_scale *out) {
    const char *text = wf_zoo_meta(zoo, "weft.scale"),
               *fitted = wf_zoo_meta(zoo, "weft.preparation");
    wf_data_desc desc;
    if (text != NULL &&
        wf_setting_parse(wf_settings_find(wf_data_settings(), "scale"), text, &desc)) {
        *out = desc.scale;
        return true;
    }
    wf_preparation preparation;
    if (fitted == NULL || wf__preparation_read(NULL, fitted, &preparation) != WF_OK) return false;
    *out = preparation.scale;
    wf__preparation_free(&preparation);
    return true;
}
