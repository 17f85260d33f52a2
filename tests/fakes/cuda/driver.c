// A libcuda.so.1 without a GPU, for libraries that compile kernels for one that was described to them: it takes what
// they compile, and every other function fails with CUDA_ERROR_NO_DEVICE.
#define NO_DEVICE(name) \
  int name(void) { return 100; }

static char anything;  // what handles point to

int cuLibraryLoadData(void** library) { return *library = &anything, 0; }
int cuLibraryUnload(void) { return 0; }
int cuLibraryGetKernel(void** kernel) { return *kernel = &anything, 0; }
int cuKernelGetAttribute(int* value) { return *value = 0, 0; }
int cuKernelSetAttribute(void) { return 0; }
int cuModuleGetFunction(void** function) { return *function = &anything, 0; }
int cuFuncGetAttribute(int* value) { return *value = 0, 0; }
int cuFuncSetAttribute(void) { return 0; }
int cuGetErrorName(int error, const char** text) { return (void)error, *text = "no device", 0; }
int cuGetErrorString(int error, const char** text) { return (void)error, *text = "no device", 0; }

NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetDevice)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetAttribute)
NO_DEVICE(cuDeviceGetCount)
NO_DEVICE(cuDevicePrimaryCtxRelease)
NO_DEVICE(cuDevicePrimaryCtxReset)
NO_DEVICE(cuDevicePrimaryCtxRetain)
NO_DEVICE(cuDriverGetVersion)
NO_DEVICE(cuInit)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkAddData_v2)
NO_DEVICE(cuLinkAddFile_v2)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkCreate_v2)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuMemcpyDtoH_v2)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleLoadDataEx)
NO_DEVICE(cuModuleLoadFatBinary)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(cuStreamSynchronize)
NO_DEVICE(cuTensorMapEncodeTiled)
NO_DEVICE(cuModuleGetGlobal_v2)
