// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/reading.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "transport/rdma.hpp"
#include "transport/ucx/read_channel.hpp"
#include "transport/ucx/registration.hpp"

namespace shardwire::transport::ucx {
namespace {

constexpr ByteCount page_bytes = 4096;
// A queue pair to itself takes a moment to be connected: milliseconds in hardware.
constexpr auto proof_limit = std::chrono::seconds(5);

// UCX may leave out what a NIC needs to be read from when it is not asked for reads, as it is not here; or a port may be up and
// reach nothing.
void prove(const std::shared_ptr<Worker>& reader, const std::shared_ptr<Worker>& serving) {
  const auto region = allocate_region(serving, true, page_bytes, {});
  std::memset(region->memory().address, 0x5a, page_bytes);
  Bytes into(page_bytes);
  bool done = false;
  Outcome outcome;
  const Bytes address = serving->address();
  ReadChannel channel(reader, address, &into);
  const ReadRange range{0, host_memory(into)};
  channel.read(channel.import_key(region->key(), page_bytes), std::span(&range, 1), [&](const Outcome& how) {
    done = true;
    outcome = how;
  });
  for (const auto deadline = Clock::now() + proof_limit; !done && Clock::now() < deadline;) {
    serving->progress();
    reader->progress();
    channel.post();  // once the handshake is over
    reader->complete();
  }
  if (!done) throw Error(ErrorCode::unsupported, "a read from this process itself did not end");
  if (outcome) throw Error(outcome->code, outcome->message);
  if (std::memcmp(into.data(), region->memory().address, page_bytes) != 0) {
    throw Error(ErrorCode::unsupported, "a read from this process itself brought other bytes");
  }
}

}  // namespace

Reading::Reading(const std::shared_ptr<Worker>& serving) {
  const ScopedLogSuppression no_log;
  const std::string transports = reading_transports(chosen_transports());
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  const std::vector<std::string> ports = chosen_ports(active_ports(), devices == nullptr ? "" : devices);
  if (transports.empty()) {
    why_not_ = "UCX_TLS names no transport that reads by hardware";
  } else if (ports.empty()) {
    why_not_ = "there is no active RDMA port to read through";
  } else if (!registers_on_any_thread(serving->context())) {
    why_not_ = "this UCX was built without support for threads";
  }
  if (!why_not_.empty()) return;
  for (const std::string& port : ports) {
    try {
      auto reader = std::make_shared<Worker>(open_reading_context(port, transports));
      prove(reader, serving);
      devices_.push_back(std::move(reader));
    } catch (const Error& error) {
      why_not_ += fmt::format("{}{}: {}", why_not_.empty() ? "" : "; ", port, error.what());
    }
  }
}

std::shared_ptr<Worker> Reading::worker_for_peer() const {
  return *std::ranges::min_element(devices_, {}, [](const auto& one) { return one.use_count(); });
}

}  // namespace shardwire::transport::ucx
