// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/reading.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "support/descriptors.hpp"
#include "transport/rdma.hpp"
#include "transport/ucx/registration.hpp"

namespace shardwire::transport::ucx {
namespace {

constexpr ByteCount page_bytes = 4096;
// Connecting a dedicated queue pair takes a moment: milliseconds in hardware.
constexpr auto proof_limit = std::chrono::seconds(20);  // in total, shared by all ports
constexpr int descriptors_of_port = 12;                 // a context and a worker
// Once a port is proven, each further port gets this time, or more if the proven one was slow.
constexpr auto min_port_limit = std::chrono::seconds(1);
constexpr int port_limit_factor = 4;

// Reads a page as a proof: UCX may omit what a NIC needs to serve reads if RMA is not requested, as here; or a port may
// be up and reach nothing.
void prove(const ReadingDevice& device, const std::shared_ptr<Worker>& serving, WallClock::time_point deadline) {
  Worker& reader = *device.worker;
  const auto region = allocate_region(serving, true, page_bytes, {});
  std::memset(region->memory().address, 0x5a, page_bytes);
  Bytes into(page_bytes);
  bool done = false;
  Outcome outcome;
  const Bytes address = serving->address();
  ReadChannel channel(device, address, &into);
  const ReadRange range{0, host_memory(into)};
  channel.read(channel.import_key(region->key(), page_bytes), std::span(&range, 1), [&](const Outcome& how) {
    done = true;
    outcome = how;
  });
  while (!done && WallClock::now() < deadline) {
    serving->progress();
    reader.progress();
    channel.post();  // after the handshake
    reader.complete();
  }
  if (!done) throw Error(ErrorCode::unsupported, "a read from this process itself did not end");
  if (outcome) throw Error(outcome->code, outcome->message);
  if (std::memcmp(into.data(), region->memory().address, page_bytes) != 0) {
    throw Error(ErrorCode::unsupported, "a read from this process itself gave wrong bytes");
  }
}

ReadingDevice open_port(const std::string& port, const std::string& transports, const std::shared_ptr<Worker>& serving,
                        const std::shared_ptr<GpuDirect>& gpus, WallClock::time_point deadline) {
  support::require_descriptors(descriptors_of_port, "opening a port for reads");
  auto worker = std::make_shared<Worker>(open_reading_context(port, transports));
  ReadingDevice device{worker, std::make_shared<DeviceTargets>(worker, gpus), std::make_shared<const int>()};
  prove(device, serving, deadline);
  return device;
}

// A failure with GPU memory does not rule out reads into host memory; a trial detects that this context lacks GPUs.
ReadingDevice open_best(const std::string& port, const std::string& transports, bool with_cuda,
                        const std::shared_ptr<Worker>& serving, const std::shared_ptr<GpuDirect>& gpus,
                        WallClock::time_point deadline) {
  if (with_cuda) {
    try {
      return open_port(port, transports + ",cuda_copy", serving, gpus, deadline);
    } catch (const Error&) {
    }
  }
  return open_port(port, transports, serving, gpus, deadline);
}

}  // namespace

Reading::Reading(const std::shared_ptr<Worker>& serving, bool with_cuda, const std::shared_ptr<GpuDirect>& gpus) {
  const ScopedLogSuppression no_log;
  const std::string transports = reading_transports(chosen_value("UCX_TLS"));
  const std::vector<std::string> ports = chosen_ports(active_ports(), chosen_value("UCX_NET_DEVICES"));
  if (transports.empty()) {
    why_not_ = {FallbackReason::left_out, "UCX_TLS names no transport that reads by hardware"};
  } else if (ports.empty()) {
    why_not_ = {FallbackReason::no_device, "there is no active RDMA port to read through"};
  } else if (!registers_on_any_thread(serving->context())) {
    why_not_ = {FallbackReason::library_unfit, "this UCX was built without support for threads"};
  }
  if (!why_not_.empty()) return;
  with_cuda = with_cuda && leaves_cuda(chosen_value("UCX_TLS"));
  const auto deadline = WallClock::now() + proof_limit;
  WallClock::duration port_limit = WallClock::duration(proof_limit) / std::ssize(ports);
  for (const std::string& port : ports) {
    const auto began = WallClock::now();
    try {
      const auto until = std::min(began + port_limit, deadline);
      devices_.push_back(open_best(port, transports, with_cuda, serving, gpus, until));
      port_limit = std::max<WallClock::duration>(min_port_limit, port_limit_factor * (WallClock::now() - began));
    } catch (const Error& error) {
      why_not_ = {FallbackReason::failed,
                  fmt::format("{}{}{}: {}", why_not_.detail, why_not_.empty() ? "" : "; ", port, error.what())};
    }
  }
  // Processes of one host with one peer each should not all use the same NIC.
  if (!devices_.empty())
    std::rotate(devices_.begin(), devices_.begin() + ::getpid() % std::ssize(devices_), devices_.end());
}

std::vector<ReadingDevice> Reading::devices_for_peer() const {
  std::vector<ReadingDevice> devices = devices_;
  std::ranges::stable_sort(devices, {}, [](const ReadingDevice& one) { return one.peers.use_count(); });
  return devices;
}

}  // namespace shardwire::transport::ucx
