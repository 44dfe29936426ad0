/* A CUDA driver without a device: calls succeed, memory is the host's, and kernels do nothing.

   It keeps what a program has asked of it: each launch with its function, grid, stream and the bytes
   of its parameters, whose sizes it reads from the kernel's machine code; and how often it was asked
   to wait. `tests/fake_driver.py` builds it and reads that back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_VALUE = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { DEVICES = 2, MOST_PARAMETERS = 192, MOST_BYTES = 4096, MOST_LAUNCHES = 4096, MOST_BLOCKS = 65536 };

typedef struct {
    char name[4096];
    int count;
    unsigned offsets[MOST_PARAMETERS], sizes[MOST_PARAMETERS];
} Kernel;

typedef struct {
    const Kernel *kernel;
    unsigned grid[6], shared;
    void *stream;
    int device, bytes;
    unsigned char parameters[MOST_BYTES];
} Launch;

typedef struct {
    uintptr_t start;
    size_t bytes;
} Block;

static int contexts[DEVICES];
static void *current = contexts, *below[64], *capturing;
static int depth;
static Launch launches[MOST_LAUNCHES];
static long launch_count, wait_count, largest_to_host;
static Block blocks[MOST_BLOCKS];
static int block_count;

/* What tests ask. */

EXPORT long fake_launches(void) { return launch_count; }
EXPORT long fake_waits(void) { return wait_count; }
EXPORT long fake_largest_to_host(void) { return largest_to_host; }
EXPORT void fake_reset(void) { launch_count = wait_count = largest_to_host = 0; }
EXPORT const Launch *fake_launch(long i) { return &launches[i % MOST_LAUNCHES]; }
EXPORT const char *fake_name(const Launch *launch) { return launch->kernel->name; }
EXPORT const Kernel *fake_kernel(const Launch *launch) { return launch->kernel; }
EXPORT void fake_set_context(int there) { current = there ? contexts : NULL; }
EXPORT void fake_set_device(int device) { current = contexts + device; }
EXPORT void fake_set_capturing(void *stream) { capturing = stream; }
static int device_of(void *context) { return context ? (int)((int *)context - contexts) : 0; }
/* Bytes of "device" memory from an address on, to the end of what was allocated there. */
EXPORT size_t fake_bytes_from(uintptr_t address) {
    for (int i = 0; i < block_count; i++)
        if (blocks[i].start <= address && address < blocks[i].start + blocks[i].bytes)
            return blocks[i].start + blocks[i].bytes - address;
    return 0;
}

/* Machine code: the parameters of each kernel, as the code says them. */

static void read_parameters(Kernel *kernel, const unsigned char *image) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    const char *names = (const char *)image + sections[header->e_shstrndx].sh_offset;
    char wanted[4160];
    snprintf(wanted, sizeof wanted, ".nv.info.%s", kernel->name);
    for (int i = 0; i < header->e_shnum; i++) {
        if (strcmp(names + sections[i].sh_name, wanted)) continue;
        const unsigned char *at = image + sections[i].sh_offset, *end = at + sections[i].sh_size;
        while (at + 4 <= end) {
            unsigned form = at[0], attribute = at[1], size = at[2] | at[3] << 8;
            if (form == 4 && attribute == 0x17 && size == 12) { /* one parameter */
                unsigned ordinal = at[8] | at[9] << 8, offset = at[10] | at[11] << 8, word;
                memcpy(&word, at + 12, 4);
                if (ordinal < MOST_PARAMETERS) {
                    kernel->offsets[ordinal] = offset;
                    kernel->sizes[ordinal] = word >> 18;
                    if (kernel->count <= (int)ordinal) kernel->count = (int)ordinal + 1;
                }
            }
            at += form == 4 ? 4 + size : 4;
        }
    }
}

EXPORT int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c,
                             void *d, void *e, unsigned f) {
    *library = (void *)code; /* which whoever loads it keeps */
    return memcmp(code, ELFMAG, SELFMAG) ? INVALID_VALUE : OK;
}
EXPORT int cuLibraryUnload(void *library) { return OK; }
EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    Kernel *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    read_parameters(made, library);
    *kernel = made;
    return OK;
}
EXPORT int cuLibraryGetKernelCount(unsigned *count, void *library) { *count = 1; return OK; }
EXPORT int cuLibraryGetModule(void **module, void *library) { *module = library; return OK; }
EXPORT int cuLibraryGetGlobal(uintptr_t *at, size_t *n, void *l, const char *name) { return NOT_FOUND; }
EXPORT int cuModuleLoadDataEx(void **module, const void *code, unsigned n, void *o, void *v) {
    *module = (void *)code;
    return OK;
}
EXPORT int cuModuleLoadData(void **module, const void *code) { *module = (void *)code; return OK; }
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    return cuLibraryGetKernel(function, module, name);
}
EXPORT int cuModuleGetGlobal(uintptr_t *at, size_t *n, void *m, const char *name) { return NOT_FOUND; }
EXPORT int cuModuleUnload(void *module) { return OK; }
EXPORT int cuKernelGetFunction(void **function, void *kernel) { *function = kernel; return OK; }
EXPORT int cuKernelGetLibrary(void **library, void *kernel) { *library = kernel; return OK; }
static int about_function(int *value, int attribute) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 64 : 0; /* threads of a block, registers */
    return OK;
}
EXPORT int cuKernelGetAttribute(int *v, int a, void *k, int d) { return about_function(v, a); }
EXPORT int cuKernelSetAttribute(int a, int v, void *k, int d) { return OK; }
EXPORT int cuFuncGetAttribute(int *v, int a, void *f) { return about_function(v, a); }
EXPORT int cuFuncSetAttribute(void *f, int a, int v) { return OK; }
EXPORT int cuFuncGetModule(void **m, void *f) { *m = f; return OK; }
EXPORT int cuFuncLoad(void *f) { return OK; }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int b, size_t s) {
    *n = 2;
    return OK;
}

/* Launches. */

EXPORT int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **parameters, void **extra) {
    if (!current && !stream) return 201; /* no context: the default stream has none of its own */
    Launch *launch = &launches[launch_count % MOST_LAUNCHES];
    unsigned grid[6] = {gx, gy, gz, bx, by, bz};
    launch->kernel = kernel;
    memcpy(launch->grid, grid, sizeof grid);
    launch->shared = shared;
    launch->stream = stream;
    launch->device = device_of(current);
    launch->bytes = 0;
    for (int i = 0; i < launch->kernel->count; i++) {
        unsigned offset = launch->kernel->offsets[i], size = launch->kernel->sizes[i];
        if (offset + size > MOST_BYTES) return INVALID_VALUE;
        memcpy(launch->parameters + offset, parameters[i], size);
        if (launch->bytes < (int)(offset + size)) launch->bytes = (int)(offset + size);
    }
    launch_count++;
    return OK;
}
typedef struct {
    unsigned grid[6], shared;
    void *stream, *attributes;
    unsigned count;
} LaunchConfig;
EXPORT int cuLaunchKernelEx(const LaunchConfig *c, void *kernel, void **parameters, void **extra) {
    const unsigned *g = c->grid;
    return cuLaunchKernel(kernel, g[0], g[1], g[2], g[3], g[4], g[5], c->shared, c->stream,
                          parameters, extra);
}

/* Two devices, as an H100 describes itself. */

EXPORT int cuInit(unsigned flags) { return OK; }
EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
EXPORT int cuDeviceGet(int *device, int i) { *device = i; return OK; }
EXPORT int cuDeviceGetCount(int *count) { *count = DEVICES; return OK; }
EXPORT int cuDeviceGetName(char *name, int n, int d) {
    snprintf(name, (size_t)n, "no device");
    return OK;
}
EXPORT int cuDeviceGetUuid(char *uuid, int d) { memset(uuid, 1 + d, 16); return OK; }
EXPORT int cuDeviceGetUuid_v2(char *uuid, int d) { return cuDeviceGetUuid(uuid, d); }
EXPORT int cuDeviceGetPCIBusId(char *id, int n, int d) {
    snprintf(id, (size_t)n, "0000:00:00.0");
    return OK;
}
EXPORT int cuDeviceTotalMem(size_t *bytes, int d) { *bytes = (size_t)80 << 30; return OK; }
EXPORT int cuDeviceComputeCapability(int *major, int *minor, int d) {
    *major = 9, *minor = 0;
    return OK;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int d) {
    static const int known[][2] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
        {8, 49152}, {10, 32}, {12, 65536}, {16, 132}, {39, 2048}, {41, 1}, {75, 9}, {76, 0},
        {81, 233472}, {82, 65536}, {83, 1}, {97, 232448}, {106, 32}, {115, 1}};
    *value = 0;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == attribute) *value = known[i][1];
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **c, int d) { *c = contexts + d; return OK; }
EXPORT int cuDevicePrimaryCtxRelease(int d) { return OK; }
EXPORT int cuDevicePrimaryCtxSetFlags(int d, unsigned f) { return OK; }
EXPORT int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active) {
    *f = 0, *active = 1;
    return OK;
}
EXPORT int cuCtxGetCurrent(void **c) { *c = current; return OK; }
EXPORT int cuCtxSetCurrent(void *c) { current = c; return OK; }
EXPORT int cuCtxPushCurrent(void *c) {
    if (depth < 64) below[depth++] = current;
    current = c;
    return OK;
}
EXPORT int cuCtxPopCurrent(void **c) {
    if (c) *c = current;
    if (depth) current = below[--depth];
    return OK;
}
EXPORT int cuCtxGetDevice(int *d) { *d = device_of(current); return current ? OK : 201; }
EXPORT int cuCtxGetFlags(unsigned *f) { *f = 0; return OK; }
EXPORT int cuCtxGetId(void *c, unsigned long long *id) { *id = 1; return OK; }
EXPORT int cuCtxGetApiVersion(void *c, unsigned *v) { *v = 13000; return OK; }
EXPORT int cuCtxGetLimit(size_t *n, int limit) { *n = 8 << 20; return OK; }
EXPORT int cuCtxGetStreamPriorityRange(int *a, int *b) { *a = 0, *b = -5; return OK; }

/* Memory, of which all that is allocated is known. */

EXPORT int cuMemAlloc(uintptr_t *at, size_t bytes) {
    if (block_count == MOST_BLOCKS) return 2;
    size_t rounded = (bytes + 255) / 256 * 256;
    void *made = memset(aligned_alloc(256, rounded), 0, rounded);
    blocks[block_count++] = (Block){(uintptr_t)made, bytes};
    *at = (uintptr_t)made;
    return OK;
}
EXPORT int cuMemFree(uintptr_t at) {
    for (int i = 0; i < block_count; i++)
        if (blocks[i].start == at) {
            blocks[i] = blocks[--block_count];
            break;
        }
    free((void *)at);
    return OK;
}
EXPORT int cuMemAllocAsync(uintptr_t *at, size_t n, void *s) { return cuMemAlloc(at, n); }
EXPORT int cuMemFreeAsync(uintptr_t at, void *s) { return cuMemFree(at); }
EXPORT int cuMemGetInfo(size_t *left, size_t *all) { *left = *all = (size_t)80 << 30; return OK; }
EXPORT int cuMemHostAlloc(void **at, size_t n, unsigned f) { *at = malloc(n); return OK; }
EXPORT int cuMemFreeHost(void *at) { free(at); return OK; }
EXPORT int cuMemGetAddressRange(uintptr_t *base, size_t *bytes, uintptr_t at) {
    if (base) *base = at;
    if (bytes) *bytes = fake_bytes_from(at);
    return OK;
}
EXPORT int cuPointerGetAttribute(void *value, int attribute, uintptr_t at) {
    if (attribute == 9) *(int *)value = 0; /* the device */
    else memcpy(value, &at, sizeof at);
    return OK;
}
static int copied(void *to, const void *from, size_t n) { memmove(to, from, n); return OK; }
static int copied_now(void *to, const void *from, size_t n) {
    wait_count++;
    return copied(to, from, n);
}
EXPORT int cuMemcpy(uintptr_t a, uintptr_t b, size_t n) { return copied_now((void *)a, (void *)b, n); }
EXPORT int cuMemcpyHtoD(uintptr_t a, void *b, size_t n) { return copied_now((void *)a, b, n); }
static int copied_to_host(void *to, uintptr_t from, size_t n) {
    if (largest_to_host < (long)n) largest_to_host = (long)n;
    return copied(to, (void *)from, n);
}
EXPORT int cuMemcpyDtoH(void *a, uintptr_t b, size_t n) {
    wait_count++;
    return copied_to_host(a, b, n);
}
EXPORT int cuMemcpyDtoD(uintptr_t a, uintptr_t b, size_t n) { return copied((void *)a, (void *)b, n); }
EXPORT int cuMemcpyAsync(uintptr_t a, uintptr_t b, size_t n, void *s) {
    return copied((void *)a, (void *)b, n);
}
EXPORT int cuMemcpyHtoDAsync(uintptr_t a, void *b, size_t n, void *s) { return copied((void *)a, b, n); }
EXPORT int cuMemcpyDtoHAsync(void *a, uintptr_t b, size_t n, void *s) {
    return copied_to_host(a, b, n);
}
EXPORT int cuMemcpyDtoDAsync(uintptr_t a, uintptr_t b, size_t n, void *s) {
    return copied((void *)a, (void *)b, n);
}
EXPORT int cuMemsetD8(uintptr_t at, unsigned char v, size_t n) { memset((void *)at, v, n); return OK; }
EXPORT int cuMemsetD8Async(uintptr_t at, unsigned char v, size_t n, void *s) {
    return cuMemsetD8(at, v, n);
}

/* Streams and events; what waits is counted. */

static int made(void **thing) { *thing = malloc(16); return OK; }
EXPORT int cuStreamCreate(void **s, unsigned f) { return made(s); }
EXPORT int cuStreamCreateWithPriority(void **s, unsigned f, int p) { return made(s); }
EXPORT int cuStreamDestroy(void *s) { return OK; }
EXPORT int cuStreamQuery(void *s) { return OK; }
EXPORT int cuStreamWaitEvent(void *s, void *e, unsigned f) { return OK; }
EXPORT int cuStreamGetFlags(void *s, unsigned *f) { *f = 1; return OK; }
EXPORT int cuStreamGetPriority(void *s, int *p) { *p = 0; return OK; }
EXPORT int cuStreamGetCtx(void *s, void **c) { *c = current; return OK; }
EXPORT int cuStreamGetDevice(void *s, int *d) { *d = 0; return OK; }
EXPORT int cuStreamIsCapturing(void *s, int *v) { *v = s && s == capturing; return OK; }
EXPORT int cuStreamSynchronize(void *s) { wait_count++; return OK; }
EXPORT int cuCtxSynchronize(void) { wait_count++; return OK; }
EXPORT int cuEventCreate(void **e, unsigned f) { return made(e); }
EXPORT int cuEventRecord(void *e, void *s) { return OK; }
EXPORT int cuEventQuery(void *e) { return OK; }
EXPORT int cuEventSynchronize(void *e) { wait_count++; return OK; }
EXPORT int cuEventDestroy(void *e) { free(e); return OK; }
EXPORT int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0; return OK; }
EXPORT int cuGetErrorName(int e, const char **s) { *s = "CUDA_ERROR"; return OK; }
EXPORT int cuGetErrorString(int e, const char **s) { *s = "an error of the driver"; return OK; }

/* How others find these functions: by name, without a version's suffix. */

static int not_there(void) { return NOT_SUPPORTED; }
EXPORT int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *how) {
    static void *self;
    Dl_info here;
    if (!self && dladdr((void *)cuGetProcAddress_v2, &here)) self = dlopen(here.dli_fname, RTLD_NOW);
    *at = strcmp(name, "cuGetProcAddress") ? dlsym(self, name) : (void *)cuGetProcAddress_v2;
    char plain[128];
    size_t n = (size_t)snprintf(plain, sizeof plain, "%s", name);
    if (!*at && n > 3 && n < sizeof plain && plain[n - 3] == '_') {
        plain[n - 3] = 0;
        *at = dlsym(self, plain);
    }
    if (!*at) *at = (void *)not_there;
    if (how) *how = 0;
    return OK;
}
EXPORT int cuGetProcAddress(const char *name, void **at, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, at, version, flags, NULL);
}
