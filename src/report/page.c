/* page: the growing text of the report. */
#include "report/page.h"

#include "base/c_locale.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(wf__page *page, size_t more) {
    if (page->failed) return false;
    size_t need = page->size + more + 1;
    if (need <= page->capacity) return true;
    size_t capacity = page->capacity == 0 ? 65536 : page->capacity;
    while (capacity < need) capacity *= 2;
    char *text = realloc(page->text, capacity);
    if (text == NULL) {
        page->failed = true;
        return false;
    }
    page->text = text;
    page->capacity = capacity;
    return true;
}

void wf__page_bytes(wf__page *page, const char *bytes, size_t count) {
    if (!reserve(page, count)) return;
    memcpy(page->text + page->size, bytes, count);
    page->size += count;
    page->text[page->size] = '\0';
}

void wf__page_add(wf__page *page, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    locale_t before = wf_c_locale_enter(); /* SVG and CSS know no decimal comma */
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length > 0 && reserve(page, (size_t)length)) {
        vsnprintf(page->text + page->size, (size_t)length + 1, format, again);
        page->size += (size_t)length;
    }
    wf_c_locale_leave(before);
    va_end(again);
}

void wf__page_escaped(wf__page *page, const char *text) {
    while (text != NULL && *text != '\0') {
        size_t plain = strcspn(text, "&<>\"'");
        wf__page_bytes(page, text, plain);
        text += plain;
        if (*text == '\0') break;
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                                            : "&#39;";
        wf__page_bytes(page, entity, strlen(entity));
        text++;
    }
}

void wf__page_base64(wf__page *page, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        size_t here = count - i < 3 ? count - i : 3;
        uint32_t word = (uint32_t)bytes[i] << 16;
        if (here > 1) word |= (uint32_t)bytes[i + 1] << 8;
        if (here > 2) word |= bytes[i + 2];
        char out[4] = {digits[word >> 18], digits[word >> 12 & 63], digits[word >> 6 & 63],
                       digits[word & 63]};
        if (here < 3) out[3] = '=';
        if (here < 2) out[2] = '=';
        wf__page_bytes(page, out, 4);
    }
}

void wf__page_free(wf__page *page) {
    free(page->text);
    *page = (wf__page){0};
}
