/* How the fake libraries read what tests write: lines "KEY VALUE", read anew at each call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_MAX = 65536 };
typedef unsigned int uint;
typedef unsigned long long ulong64;

static void read_state(char *text) {
    const char *path = getenv(STATE_VARIABLE);
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = file ? fread(text, 1, STATE_MAX - 1, file) : 0;
    text[length] = 0;
    if (file) fclose(file);
}

/* Copies the value of the line that begins with KEY; returns whether there is one. */
static int value_of(const char *key, char *value, size_t size) {
    static __thread char text[STATE_MAX];
    size_t length = strlen(key);
    read_state(text);
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            snprintf(value, size, "%s", line + length + 1);
            return 1;
        }
    return 0;
}

/* Copies a field of device INDEX; returns whether it is there. */
static int field(int index, const char *name, char *value, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "%d.%s", index, name);
    return value_of(key, value, size);
}

/* Reads a number of device INDEX; returns whether it is there. */
static int has_number(int index, const char *name, ulong64 *value) {
    char text[64];
    if (!field(index, name, text, sizeof text)) return 0;
    *value = strtoull(text, NULL, 10);
    return 1;
}
