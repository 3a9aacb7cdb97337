// A CUDA device without a GPU: what libtorch_cuda.so registers with torch, with nothing behind it.
//
// torch asks for the CUDA hooks once, while it is imported, and remembers the answer: load this library before torch.
// The functions at the end are called from Python (native/__init__.py).
//
// Where a member has no `override`, some supported torch has no such virtual function; there the member is unused.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <atomic>

#pragma GCC diagnostic ignored "-Wsuggest-override"

namespace {
using c10::Device;
using c10::DeviceIndex;
using c10::kCUDA;
using c10::Stream;
using c10::StreamId;

constexpr int MAX_DEVICES = 64;
constexpr StreamId POOL = 32;  // streams of each priority: c10/cuda/CUDAStream.cpp, kStreamsPerPool

DeviceIndex device_count = 1;
thread_local DeviceIndex current_device = 0;
thread_local StreamId current_stream[MAX_DEVICES] = {};
std::atomic<StreamId> streams_taken[2] = {};  // of normal and of high priority
std::atomic<int64_t> events_made{0};

enum What : int { RECORD, STREAM_WAITS, HOST_WAITS_FOR_EVENT, HOST_WAITS };
using Callback = void (*)(int what, int64_t event, int64_t stream);
Callback callback = nullptr;

void tell(What what, void* event = nullptr, StreamId stream = 0) {
  if (callback) callback(what, reinterpret_cast<int64_t>(event), stream);
}

DeviceIndex exchange(DeviceIndex device) {
  auto before = current_device;
  if (device >= 0) current_device = device;
  return before;
}

StreamId new_stream(bool high_priority) {
  return 1 + streams_taken[high_priority]++ % POOL + (high_priority ? POOL : 0);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static DeviceIndex index(Device device) { return device.index() < 0 ? current_device : device.index(); }
  static Stream stream(Device device, StreamId id) { return Stream(Stream::UNSAFE, Device(kCUDA, index(device)), id); }

  c10::DeviceType type() const override { return kCUDA; }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  Device getDevice() const override { return Device(kCUDA, current_device); }
  Device exchangeDevice(Device device) const override { return Device(kCUDA, exchange(device.index())); }
  void setDevice(Device device) const override { exchange(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { exchange(device.index()); }

  Stream getStream(Device device) const override { return stream(device, current_stream[index(device)]); }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool high) const override { return stream(device, new_stream(high)); }
  Stream getNewStream(Device device, int priority) const { return stream(device, new_stream(priority < 0)); }
  Stream exchangeStream(Stream next) const override {
    Stream before = getStream(next.device());
    current_stream[index(next.device())] = next.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream& stream) const override { tell(HOST_WAITS, nullptr, stream.id()); }
  void synchronizeDevice(const DeviceIndex) const { tell(HOST_WAITS); }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = reinterpret_cast<void*>(++events_made);
    tell(RECORD, *event, stream.id());
  }
  void block(void* event, const Stream& stream) const override { tell(STREAM_WAITS, event, stream.id()); }
  bool queryEvent(void*) const override { return false; }  // so that the program waits, as it does for a busy GPU
  void synchronizeEvent(void* event) const override { tell(HOST_WAITS_FOR_EVENT, event); }
  double elapsedTime(void*, void*, const DeviceIndex) const { return 1.0; }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const { return 91900; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const { return true; }
  std::string showConfig() const override { return "  - CUDA Runtime 13.0\n  - CuDNN 91.9\n"; }
  double batchnormMinEpsilonCuDNN() const override { return 1e-5; }
  bool hasCuSOLVER() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { exchange(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return exchange(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchange(device); }
  void deviceSynchronize(DeviceIndex) const override { tell(HOST_WAITS); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  Device getDeviceFromPtr(void*) const override { return Device(kCUDA, 0); }
  const at::Generator& getDefaultGenerator(DeviceIndex) const { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const { return at::detail::createCPUGenerator(); }
};

// DistributedDataParallel asks for a timer of the kind of its device.
struct DdpTimer final : c10d::Timer {
  explicit DdpTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

Guard guard;
}  // namespace

// Preferred: a torch that is built for CUDA registers its own hooks and timer afterwards, which need a driver.
namespace at {
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, Hooks)
}
namespace c10d {
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, kCUDA, c10::REGISTRY_PREFERRED, DdpTimer)
}

extern "C" {
// Call it after the import of torch, which may put its own guard into the slot.
void memlab_install(int devices, Callback told) {
  device_count = static_cast<DeviceIndex>(devices);
  callback = told;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kCUDA)].store(&guard);
}
int memlab_device() { return current_device; }
int memlab_exchange_device(int device) { return exchange(static_cast<DeviceIndex>(device)); }
int64_t memlab_stream(int device) { return current_stream[device < 0 ? current_device : device]; }
void memlab_set_stream(int device, int64_t stream) { current_stream[current_device = static_cast<DeviceIndex>(device)] = stream; }
int64_t memlab_new_stream(int high_priority) { return new_stream(high_priority != 0); }
}
