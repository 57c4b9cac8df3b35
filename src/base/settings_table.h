/* settings_table: the table of settings and the defaults of a public struct, from its .def file
 * (weft/settings.h has the columns). A source file includes this once for each struct, after
 *
 *     #define SETTINGS_OF wf_fit            wf_fit_settings(), wf_fit_desc_default() of wf_fit_desc
 *     #define SETTINGS_SECTION "train"      of recipes
 *     #define SETTINGS_META "fit."          before the member's name: the key in files
 *     #define SETTINGS_DEF "weft/fit.def"
 */
#define SETTINGS_JOIN_(a, b) a##b
#define SETTINGS_JOIN(a, b) SETTINGS_JOIN_(a, b)
#define SETTINGS_DESC SETTINGS_JOIN(SETTINGS_OF, _desc)
#define SETTINGS_ROWS SETTINGS_JOIN(SETTINGS_OF, _rows)

#define NAME(constant, text) text,
#define ENUM(type, values) static const char *const type##_names[] = {values NULL};
#include SETTINGS_DEF

static const wf_setting SETTINGS_ROWS[] = {
#define SETTING(...) WF_SETTING_ROW(SETTINGS_DESC, SETTINGS_SECTION, SETTINGS_META, __VA_ARGS__)
#include SETTINGS_DEF
    {0}};

const wf_setting *SETTINGS_JOIN(SETTINGS_OF, _settings)(void) { return SETTINGS_ROWS; }

SETTINGS_DESC SETTINGS_JOIN(SETTINGS_OF, _desc_default)(void) {
    SETTINGS_DESC desc = {0};
    wf_settings_default(SETTINGS_ROWS, &desc);
    return desc;
}

#undef SETTINGS_ROWS
#undef SETTINGS_DESC
#undef SETTINGS_JOIN
#undef SETTINGS_JOIN_
#undef SETTINGS_OF
#undef SETTINGS_SECTION
#undef SETTINGS_META
#undef SETTINGS_DEF
