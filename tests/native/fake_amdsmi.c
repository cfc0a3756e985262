/* A small libamd_smi.so for tests. Struct layouts are those of amdsmi.h of ROCm 7.0.
 *
 * Every call reads the file named by FAKE_AMDSMI_STATE anew. A line is "KEY VALUE"; the keys are
 *   init CODE                 what amdsmi_init returns
 *   fail FUNCTION CODE        calls of FUNCTION return CODE
 *   xgmi I J                  devices I and J are joined
 *   I.FIELD VALUE             of device I: uuid hip name serial bus (a number) total used busy edge hotspot current
 *                             average ecc; processes PID:MIB[,PID:MIB...]; lost CODE (every call returns it)
 * A numeric FIELD that is missing is "not supported" (power: N/A). The functions that the Python package binds and
 * that are not here are made by the build: they return "not supported".
 */
#define STATE_VARIABLE "FAKE_AMDSMI_STATE"
#include "fake_state.h"

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, NOT_FOUND = 31, NOT_INIT = 32, DEVICES_MAX = 16 };
#define NAME 256

typedef struct { int index; } *Device;
typedef struct { uint drm_render, drm_card, hsa_id, hip_id; char hip_uuid[NAME]; } Enumeration;
typedef struct {
    char name[NAME]; uint vendor; char vendor_name[NAME]; uint subvendor; ulong64 device; uint revision;
    char serial[NAME]; uint oam, units; ulong64 version; uint subsystem, reserved[21];
} Asic;
typedef struct { uint total, used, reserved[2]; } Vram;
typedef struct { uint gfx, umc, mm, reserved[13]; } Activity;
typedef struct { ulong64 socket; uint current, average; ulong64 volts[3]; uint limit; ulong64 reserved[18]; } Power;
typedef struct { ulong64 correctable, uncorrectable, deferred, reserved[5]; } Errors;
typedef struct {
    char name[NAME]; uint pid; ulong64 memory, gfx, enc; uint engines[12];
    ulong64 gtt, cpu, vram; uint memories[10]; char container[NAME]; uint occupancy, reserved[11];
} Process;

static struct { int index; } slots[DEVICES_MAX];
static int initialised;

static int planted(const char *function) {
    char key[128], value[64];
    if (!initialised) return NOT_INIT;
    snprintf(key, sizeof key, "fail %s", function);
    return value_of(key, value, sizeof value) ? atoi(value) : SUCCESS;
}

static int trouble(Device device, const char *function) {
    ulong64 code;
    char text[NAME];
    int planned = planted(function);
    if (planned) return planned;
    if (!field(device->index, "uuid", text, sizeof text)) return NOT_FOUND;
    return has_number(device->index, "lost", &code) ? (int)code : SUCCESS;
}
#define CHECK(device) do { int code_ = trouble(device, __func__); if (code_) return code_; } while (0)

int amdsmi_init(ulong64 flags) {
    char value[64];
    (void)flags;
    for (int i = 0; i < DEVICES_MAX; i++) slots[i].index = i;
    if (value_of("init", value, sizeof value) && atoi(value)) return atoi(value);
    initialised = 1;
    return SUCCESS;
}

int amdsmi_shut_down(void) {
    initialised = 0;
    return SUCCESS;
}

int amdsmi_get_socket_handles(uint *count, void **sockets) {
    int code = planted(__func__);
    if (code) return code;
    *count = 1;
    if (sockets) *sockets = &initialised;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint *count, void **devices) {
    char text[NAME];
    uint found = 0;
    (void)socket;
    for (int i = 0; i < DEVICES_MAX; i++)
        if (field(i, "uuid", text, sizeof text)) {
            if (devices && found < *count) devices[found] = &slots[i];
            found++;
        }
    *count = found;
    return SUCCESS;
}

int amdsmi_get_gpu_device_bdf(Device device, ulong64 *address) {
    ulong64 bus;
    CHECK(device);
    if (!has_number(device->index, "bus", &bus)) return NOT_SUPPORTED;
    *address = bus << 8;
    return SUCCESS;
}

int amdsmi_get_gpu_device_uuid(Device device, uint *length, char *uuid) {
    CHECK(device);
    field(device->index, "uuid", uuid, *length);
    return SUCCESS;
}

int amdsmi_get_gpu_enumeration_info(Device device, Enumeration *info) {
    CHECK(device);
    memset(info, 0, sizeof *info);
    return field(device->index, "hip", info->hip_uuid, sizeof info->hip_uuid) ? SUCCESS : NOT_SUPPORTED;
}

int amdsmi_get_gpu_asic_info(Device device, Asic *info) {
    CHECK(device);
    memset(info, 0, sizeof *info);
    info->vendor = 0x1002;
    field(device->index, "name", info->name, sizeof info->name);
    field(device->index, "serial", info->serial, sizeof info->serial);
    return SUCCESS;
}

static int uint_field(Device device, const char *name, uint *value) {
    ulong64 wide;
    if (!has_number(device->index, name, &wide)) return NOT_SUPPORTED;
    *value = (uint)wide;
    return SUCCESS;
}

int amdsmi_get_gpu_vram_usage(Device device, Vram *vram) {
    CHECK(device);
    int code = uint_field(device, "total", &vram->total);
    return code ? code : uint_field(device, "used", &vram->used);
}

int amdsmi_get_gpu_activity(Device device, Activity *activity) {
    CHECK(device);
    activity->umc = activity->mm = 0xFFFF;
    return uint_field(device, "busy", &activity->gfx);
}

int amdsmi_get_temp_metric(Device device, uint sensor, uint metric, long long *celsius) {
    ulong64 value;
    CHECK(device);
    if (metric || !has_number(device->index, sensor ? "hotspot" : "edge", &value)) return NOT_SUPPORTED;
    *celsius = (long long)value;
    return SUCCESS;
}

int amdsmi_get_power_info(Device device, Power *power) {
    CHECK(device);
    memset(power, 0, sizeof *power);
    power->current = power->average = 0xFFFF;
    uint_field(device, "current", &power->current);
    uint_field(device, "average", &power->average);
    return SUCCESS;
}

int amdsmi_get_gpu_process_list(Device device, uint *count, Process *list) {
    char text[4096];
    uint found = 0;
    CHECK(device);
    if (!field(device->index, "processes", text, sizeof text)) text[0] = 0;
    for (char *save, *each = strtok_r(text, ",", &save); each; each = strtok_r(NULL, ",", &save), found++)
        if (found < *count) {
            memset(&list[found], 0, sizeof *list);
            list[found].pid = (uint)atoi(each);
            list[found].memory = list[found].vram = strtoull(strchr(each, ':') + 1, NULL, 10) << 20;
        }
    *count = found;
    return SUCCESS;
}

int amdsmi_topo_get_link_type(Device one, Device other, ulong64 *hops, uint *type) {
    char key[64], value[64];
    CHECK(one);
    CHECK(other);
    snprintf(key, sizeof key, "xgmi %d", one->index);
    *hops = 1;
    *type = value_of(key, value, sizeof value) && atoi(value) == other->index ? 2 : 1;
    return SUCCESS;
}

int amdsmi_get_gpu_total_ecc_count(Device device, Errors *errors) {
    CHECK(device);
    memset(errors, 0, sizeof *errors);
    return has_number(device->index, "ecc", &errors->uncorrectable) ? SUCCESS : NOT_SUPPORTED;
}
