/* A small libnvidia-ml.so.1 for tests. Struct layouts and versions are those of nvml.h (driver 535 and later).
 *
 * Every call reads the file named by FAKE_NVML_STATE anew. A line is "KEY VALUE"; the keys are
 *   init CODE                 what nvmlInitWithFlags returns
 *   hang FUNCTION             calls of FUNCTION do not return while the line is there; the first makes
 *                             the file FAKE_NVML_STATE.hanging
 *   fail FUNCTION CODE        calls of FUNCTION return CODE
 *   nvlink I J                devices I and J are joined
 *   I.FIELD VALUE             of device I: uuid name bus total used reserved util temp power mig pending failure
 *                             lost CODE (every call returns it; not listed any more)
 *                             compute, graphics PID:MIB[,PID:MIB...] ("-" for unknown memory)
 *                             xids N[,N...] (raised once each, in order, to those who registered before)
 * A numeric FIELD that is missing is "not supported". -DOMIT_<function> leaves a symbol out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
#define STATE_VARIABLE "FAKE_NVML_STATE"
#include "fake_state.h"

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, VERSION_MISMATCH = 25, DEVICES_MAX = 16, XIDS_MAX = 64
};
typedef struct { int index; } *Device;
typedef struct { ulong64 total, free, used; } Memory;
typedef struct { uint version; ulong64 total, reserved, free, used; } Memory_v2;
typedef struct { uint gpu, memory; } Utilization;
typedef struct { uint pid; ulong64 used; uint gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { Device device; ulong64 type, data; uint gpu_instance, compute_instance; } Event;
typedef struct { uint version, sensor; int temperature; } Temperature;
typedef struct { int index; int taken; } *EventSet;

_Static_assert(sizeof(Memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(Process) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(Pci) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(Event) == 32, "nvmlEventData_t");

static struct { int index; } slots[DEVICES_MAX];
static int initialised;

static int number(int index, const char *name, ulong64 *value) {
    return has_number(index, name, value) ? SUCCESS : NOT_SUPPORTED;
}

static int exists(int index) {
    char text[128];
    return field(index, "uuid", text, sizeof text);
}

static int lost(int index) {
    ulong64 code;
    return number(index, "lost", &code) ? SUCCESS : (int)code;
}

static int planted(const char *function) {
    char key[4096], value[64];
    while (value_of("hang", value, sizeof value) && !strcmp(value, function)) {
        snprintf(key, sizeof key, "%s.hanging", getenv(STATE_VARIABLE));
        close(open(key, O_CREAT | O_WRONLY, 0600));
        usleep(5000);
    }
    snprintf(key, sizeof key, "fail %s", function);
    return value_of(key, value, sizeof value) ? atoi(value) : SUCCESS;
}

/* What a call on a device returns before it does anything. */
static int trouble(Device device, const char *function) {
    int code;
    if (!initialised) return UNINITIALIZED;
    if ((code = planted(function))) return code;
    if (!device) return INVALID_ARGUMENT;
    return exists(device->index) ? lost(device->index) : NOT_FOUND;
}
#define CHECK(device) do { int code_ = trouble(device, __func__); if (code_) return code_; } while (0)

#ifndef OMIT_nvmlInitWithFlags
int nvmlInitWithFlags(uint flags) {
    char value[64];
    (void)flags;
    for (int i = 0; i < DEVICES_MAX; i++) slots[i].index = i;
    if (value_of("init", value, sizeof value) && atoi(value)) return atoi(value);
    initialised++;
    return SUCCESS;
}
#endif

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == 999 ? "Unknown Error" : "an error of the fake";
}

int nvmlDeviceGetCount_v2(uint *count) {
    if (!initialised) return UNINITIALIZED;
    int code = planted(__func__);
    if (code) return code;
    *count = 0;
    for (int i = 0; i < DEVICES_MAX; i++) *count += exists(i) && !lost(i);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, Device *device) {
    if (!initialised) return UNINITIALIZED;
    int code = planted(__func__);
    if (code) return code;
    for (int i = 0; i < DEVICES_MAX; i++)
        if (exists(i) && !lost(i) && !index--) {
            *device = (Device)&slots[i];
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    char text[128];
    if (!initialised) return UNINITIALIZED;
    for (int i = 0; i < DEVICES_MAX; i++)
        if (field(i, "uuid", text, sizeof text) && !strcmp(text, uuid)) {
            if (lost(i)) return lost(i);
            *device = (Device)&slots[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

static int text_field(Device device, const char *name, char *value, uint length, const char *function) {
    int code = trouble(device, function);
    if (code) return code;
    return field(device->index, name, value, length) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetUUID(Device device, char *uuid, uint length) {
    return text_field(device, "uuid", uuid, length, __func__);
}

int nvmlDeviceGetName(Device device, char *name, uint length) {
    return text_field(device, "name", name, length, __func__);
}

int nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    return text_field(device, "bus", pci->bus_id, sizeof pci->bus_id, __func__);
}

static int memory_of(Device device, ulong64 *total, ulong64 *used, ulong64 *reserved) {
    int code = number(device->index, "total", total);
    if (code || (code = number(device->index, "used", used))) return code;
    if (number(device->index, "reserved", reserved)) *reserved = 0;
    *total <<= 20, *used <<= 20, *reserved <<= 20;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    ulong64 total, used, reserved;
    CHECK(device);
    int code = memory_of(device, &total, &used, &reserved);
    if (code) return code;
    *memory = (Memory){total, total - used - reserved, used + reserved};
    return SUCCESS;
}

#ifndef OMIT_nvmlDeviceGetMemoryInfo_v2
int nvmlDeviceGetMemoryInfo_v2(Device device, Memory_v2 *memory) {
    ulong64 total, used, reserved;
    CHECK(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    int code = memory_of(device, &total, &used, &reserved);
    if (code) return code;
    *memory = (Memory_v2){memory->version, total, reserved, total - used - reserved, used};
    return SUCCESS;
}
#endif

static int uint_field(Device device, const char *name, uint *value, const char *function) {
    ulong64 wide;
    int code = trouble(device, function);
    if (code || (code = number(device->index, name, &wide))) return code;
    *value = (uint)wide;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    memset(rates, 0, sizeof *rates);
    return uint_field(device, "util", &rates->gpu, __func__);
}

#ifndef OMIT_nvmlDeviceGetTemperature
int nvmlDeviceGetTemperature(Device device, uint sensor, uint *temperature) {
    return sensor ? INVALID_ARGUMENT : uint_field(device, "temp", temperature, __func__);
}
#endif

int nvmlDeviceGetTemperatureV(Device device, Temperature *temperature) {
    if (temperature->version != (sizeof *temperature | 1u << 24)) return VERSION_MISMATCH;
    return uint_field(device, "temp", (uint *)&temperature->temperature, __func__);
}

#ifndef OMIT_nvmlDeviceGetPowerUsage
int nvmlDeviceGetPowerUsage(Device device, uint *milliwatts) {
    return uint_field(device, "power", milliwatts, __func__);
}
#endif

int nvmlDeviceGetMigMode(Device device, uint *current, uint *pending) {
    *pending = 0;
    return uint_field(device, "mig", current, __func__);
}

int nvmlDeviceGetRemappedRows(Device device, uint *corrected, uint *uncorrected, uint *pending, uint *failure) {
    *corrected = *uncorrected = 0;
    int code = uint_field(device, "pending", pending, __func__);
    return code ? code : uint_field(device, "failure", failure, __func__);
}

int nvmlDeviceGetP2PStatus(Device one, Device other, uint what, uint *status) {
    char key[64], value[64];
    CHECK(one);
    CHECK(other);
    snprintf(key, sizeof key, "nvlink %d", one->index);
    *status = what == 2 && value_of(key, value, sizeof value) && atoi(value) == other->index ? 0 : 5;
    return SUCCESS;
}

static int processes(Device device, const char *name, uint *count, Process *list, const char *function) {
    char text[4096];
    uint found = 0;
    int code = trouble(device, function);
    if (code) return code;
    if (!field(device->index, name, text, sizeof text)) text[0] = 0;
    for (char *save, *each = strtok_r(text, ",", &save); each; each = strtok_r(NULL, ",", &save), found++)
        if (list && found < *count) {
            char *used = strchr(each, ':') + 1;
            ulong64 bytes = *used == '-' ? ~0ull : strtoull(used, NULL, 10) << 20;
            list[found] = (Process){(uint)atoi(each), bytes, ~0u, ~0u};
        }
    code = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

#ifndef OMIT_nvmlDeviceGetComputeRunningProcesses_v3
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, uint *count, Process *list) {
    return processes(device, "compute", count, list, __func__);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, uint *count, Process *list) {
    return processes(device, "graphics", count, list, __func__);
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v2(Device device, uint *count, Process *list) {
    return processes(device, "compute", count, list, __func__);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, uint *count, Process *list) {
    return processes(device, "graphics", count, list, __func__);
}

static int raised(int index, int *xids) {
    char text[512];
    int count = 0;
    if (!field(index, "xids", text, sizeof text)) return 0;
    for (char *save, *each = strtok_r(text, ",", &save); each && count < XIDS_MAX; each = strtok_r(NULL, ",", &save))
        xids[count++] = atoi(each);
    return count;
}

#ifndef OMIT_nvmlEventSetCreate
int nvmlEventSetCreate(EventSet *set) {
    if (!initialised) return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    return SUCCESS;
}
#endif

int nvmlEventSetFree(EventSet set) {
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device device, ulong64 types, EventSet set) {
    int xids[XIDS_MAX];
    CHECK(device);
    if (types != 8) return NOT_SUPPORTED;
    set->index = device->index;
    set->taken = raised(set->index, xids);
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet set, Event *event, uint timeout_ms) {
    int xids[XIDS_MAX], code = planted(__func__);
    (void)timeout_ms;
    if (code) return code;
    if (set->taken < raised(set->index, xids)) {
        *event = (Event){(Device)&slots[set->index], 8, (ulong64)xids[set->taken++], ~0u, ~0u};
        return SUCCESS;
    }
    return lost(set->index) ? lost(set->index) : TIMEOUT;
}
