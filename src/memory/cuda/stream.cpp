// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/stream.hpp"

#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "memory/cuda/engine_calls.hpp"
#include "memory/device_copy/copy_table.hpp"
#include "memory/device_copy/value_box.hpp"

namespace shardwire::memory::cuda {
namespace {

struct Call {
  std::shared_ptr<Platform> platform;
  DeviceStream::Done done;
};

// A stream callback, because cudaLaunchHostFunc callbacks do not run after the device has failed.
void CUDART_CB run_call(cudaStream_t, cudaError_t status, void* data) {
  const std::unique_ptr<Call> call(static_cast<Call*>(data));
  std::optional<Error> error;
  if (status != cudaSuccess) error = call->platform->error_in_callback(status);
  call->done(error);
}

// Parts of a block start aligned for every type.
constexpr ByteCount aligned(ByteCount bytes) {
  return (bytes + 15) / 16 * 16;
}

StreamHandle make_stream(Platform& platform, int device) {
  const CurrentContext current = enter(platform, device);
  cudaStream_t stream = nullptr;
  platform.check(platform.api().stream_create(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return {stream, {&platform.api()}};
}

}  // namespace

Stream::Stream(std::shared_ptr<Platform> platform, int device)
    : platform_(std::move(platform)), device_(device), stream_(make_stream(*platform_, device)), blocks_(*platform_) {
}

Stream::~Stream() {
  // Even if CUDA has failed: the failure ends all work under way.
  try {
    const CurrentContext current(*platform_, device_);
    platform_->api().stream_synchronize(stream_.get());
    blocks_.clear();
    stream_.reset();
  } catch (const Error&) {  // without its context nothing can be freed
    blocks_.abandon();
    (void)stream_.release();  // NOLINT
  }
}

void Stream::wait(void* event) {
  if (event == nullptr) throw Error(ErrorCode::invalid_argument, "there is no event to wait for");
  const CurrentContext current = enter(*platform_, device_);
  platform_->check(platform_->api().stream_wait_event(stream_.get(), static_cast<cudaEvent_t>(event), 0),
                   "cudaStreamWaitEvent");
}

void Stream::record(void* event) {
  if (event == nullptr) throw Error(ErrorCode::invalid_argument, "there is no event to record");
  const CurrentContext current = enter(*platform_, device_);
  platform_->check(platform_->api().event_record(static_cast<cudaEvent_t>(event), stream_.get()), "cudaEventRecord");
}

void Stream::clear(std::byte* address, ByteCount bytes) {
  const CurrentContext current = enter(*platform_, device_);
  platform_->check(platform_->api().memset_async(address, 0, bytes, stream_.get()), "cudaMemsetAsync");
}

Direction Stream::direction_of(const DeviceCopy& copy) const {
  if (platform_->is_host_memory(copy.target)) return Direction::to_host;
  return platform_->is_host_memory(copy.source) ? Direction::from_host : Direction::inside;
}

void Stream::synchronize() {
  platform_->check(platform_->api().stream_synchronize(stream_.get()), "cudaStreamSynchronize");
}

EngineLimits Stream::measure_engine(MakeTrial make_trial) {
  const CurrentContext current = enter(*platform_, device_);
  WorkBlock& block = blocks_.take(2 * trial_bytes, 3 * trial_bytes);
  const auto trial = [&](Direction direction, ByteCount run_bytes) {
    std::byte* const host = block.host.get();
    std::byte* const device = block.device.get();
    return DeviceCopy{make_trial(trial_bytes / run_bytes, run_bytes),
                      direction == Direction::from_host ? host : device + trial_bytes,
                      direction == Direction::to_host ? host : device};
  };
  const DeviceCopy first = trial(Direction::inside, trial_bytes);
  copy_by_kernel({&first, 1});  // the first launch loads the kernels
  synchronize();
  const EngineLimits limits = measure_engine_limits([&](Direction direction, ByteCount run_bytes, bool by_engine) {
    constexpr int copies = 4;  // a single copy would measure only its launch
    const DeviceCopy copy = trial(direction, run_bytes);
    const std::vector<EngineCall> calls = engine_calls(copy.copy, 0);
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < copies; ++i) by_engine ? copy_by_engine(copy, calls) : copy_by_kernel({&copy, 1});
    synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  });
  blocks_.give_back(block, stream_.get());
  return limits;
}

void Stream::copy(std::span<const DeviceCopy> copies) {
  if (copies.empty()) return;
  const CurrentContext current = enter(*platform_, device_);
  std::vector<DeviceCopy> rest;
  for (const DeviceCopy& copy : copies) {
    const std::vector<EngineCall> calls = engine_calls(copy.copy, limits_.of(direction_of(copy)));
    if (calls.empty()) rest.push_back(copy);
    copy_by_engine(copy, calls);
  }
  if (!rest.empty()) copy_by_kernel(rest);
}

void Stream::copy_by_engine(const DeviceCopy& copy, std::span<const EngineCall> calls) {
  const Api& api = platform_->api();
  const StridedCopy& shape = copy.copy;
  for (const EngineCall& call : calls) {
    std::byte* const to = copy.target + call.target_offset;
    const std::byte* const from = copy.source + call.source_offset;
    platform_->check(call.rows == 1
                         ? api.memcpy_async(to, from, shape.run_bytes(), cudaMemcpyDefault, stream_.get())
                         : api.memcpy_2d_async(to, shape.target_step(), from, shape.source_step(), shape.run_bytes(),
                                               call.rows, cudaMemcpyDefault, stream_.get()),
                     "cudaMemcpyAsync");
  }
}

void Stream::upload(const WorkBlock& block, std::span<const std::byte> bytes) {
  std::memcpy(block.host.get(), bytes.data(), bytes.size());
  platform_->check(platform_->api().memcpy_async(block.device.get(), block.host.get(), bytes.size(),
                                                 cudaMemcpyHostToDevice, stream_.get()),
                   "cudaMemcpyAsync of a table of copies");
}

WorkBlock& Stream::take_block(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes) {
  if (WorkBlock* const known = blocks_.find(table, host_bytes, device_bytes)) return *known;
  WorkBlock& block = blocks_.take(host_bytes, device_bytes);
  upload(block, table.bytes());
  block.table = table.size();
  return block;
}

void Stream::copy_by_kernel(std::span<const DeviceCopy> copies) {
  const CopyTable table(copies);
  WorkBlock& block = take_block(table, table.bytes().size(), table.bytes().size());
  platform_->check(platform_->api().launch_copy(table.view(block.device.get()), stream_.get()), "copy kernel");
  blocks_.give_back(block, stream_.get());
}

void Stream::digest(std::span<const DeviceCopy> copies, std::span<Digest128> digests) {
  if (copies.size() != digests.size()) {
    throw Error(ErrorCode::internal, "not as many digests as copies that they are taken of");
  }
  if (copies.empty()) return;
  const CurrentContext current = enter(*platform_, device_);
  const CopyTable table(copies);
  const ByteCount table_bytes = aligned(table.bytes().size());
  const ByteCount leaves_bytes = table.size().leaves * sizeof(Digest128);
  WorkBlock& block =
      take_block(table, table_bytes + digests.size_bytes(), table_bytes + leaves_bytes + digests.size_bytes());
  auto* const leaves = reinterpret_cast<Digest128*>(block.device.get() + table_bytes);
  auto* const roots = reinterpret_cast<Digest128*>(block.device.get() + table_bytes + leaves_bytes);
  platform_->check(platform_->api().launch_digest(table.view(block.device.get()), leaves, roots, stream_.get()),
                   "digest kernels");
  bring_back(block, roots, block.host.get() + table_bytes, std::as_writable_bytes(digests));
}

// Uses pinned memory in between: cudaMemcpyAsync to pageable memory waits. The callback runs on the stream, so the next
// user of the block writes only afterwards.
void Stream::bring_back(WorkBlock& block, const void* from, std::byte* back, std::span<std::byte> into) {
  platform_->check(platform_->api().memcpy_async(back, from, into.size(), cudaMemcpyDeviceToHost, stream_.get()),
                   "cudaMemcpyAsync of results");
  call_when_done([back, into](const std::optional<Error>& error) {
    if (!error) std::memcpy(into.data(), back, into.size());
  });
  blocks_.give_back(block, stream_.get());
}

void Stream::fill(std::span<const ValueBox> boxes) {
  const CurrentContext current = enter(*platform_, device_);
  const ValueTable table(boxes);
  WorkBlock& block = blocks_.take(table.bytes().size(), table.bytes().size());
  upload(block, table.bytes());
  platform_->check(platform_->api().launch_fill(table.view(block.device.get()), stream_.get()), "kernel that fills");
  blocks_.give_back(block, stream_.get());
}

void Stream::count_wrong(std::span<const ValueBox> boxes, std::uint64_t& wrong) {
  const CurrentContext current = enter(*platform_, device_);
  const ValueTable table(boxes);
  std::vector<std::byte> bytes(table.bytes().begin(), table.bytes().end());
  const std::size_t at = bytes.size();
  const std::span<std::uint64_t> result(&wrong, 1);
  const auto begin = std::as_bytes(result);
  bytes.insert(bytes.end(), begin.begin(), begin.end());
  WorkBlock& block = blocks_.take(bytes.size(), bytes.size());
  upload(block, bytes);
  auto* const count = reinterpret_cast<std::uint64_t*>(block.device.get() + at);
  platform_->check(platform_->api().launch_count_wrong(table.view(block.device.get()), count, stream_.get()),
                   "kernel that compares");
  bring_back(block, count, block.host.get() + at, std::as_writable_bytes(result));
}

void Stream::call_when_done(Done done) {
  const CurrentContext current = enter(*platform_, device_);
  auto call = std::make_unique<Call>(Call{platform_, std::move(done)});
  platform_->check(platform_->api().stream_add_callback(stream_.get(), &run_call, call.get(), 0),
                   "cudaStreamAddCallback");
  (void)call.release();  // NOLINT: run_call() owns it
}

}  // namespace shardwire::memory::cuda
