// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/nccl_loop.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "memory/device.hpp"
#include "memory/device_events.hpp"
#include "perf/measure/state_block.hpp"
#include "shardwire/error.hpp"
#include "shardwire/plan.hpp"
#include "transport/bytes.hpp"
#include "transport/config.hpp"
#include "transport/nccl/api.hpp"

namespace shardwire::perf {

namespace {

using namespace transport::nccl;

const Api& require_api() {
#if SHARDWIRE_HAVE_NCCL
  const FoundApi found = find_api();
#else
  const FoundApi found{.why_not = "this build is without it"};
#endif
  if (found.api == nullptr) throw Error(ErrorCode::unsupported, "there is no NCCL: " + found.why_not);
  return *found.api;
}

void check(const Api& api, int result, const char* what) {
  if (result == success) return;
  throw Error(ErrorCode::transport_failed, fmt::format("{}: {}", what, api.error_string(result)));
}

class Loop final : public NcclLoop {
 public:
  Loop(const Api& api, std::shared_ptr<memory::DeviceRuntime> runtime, const UniqueId& id, int member, int members,
       int device)
      : api_(api), runtime_(std::move(runtime)), device_(device), stream_(runtime_->open_stream(device)) {
    Config config;
    config.blocking = 1;
    runtime_->on_device(
        device_, [&] { check(api_, api_.init(&communicator_, members, id, member, &config), "ncclCommInitRank"); });
  }
  ~Loop() override {
    try {
      runtime_->on_device(device_, [&] { api_.destroy(communicator_); });
    } catch (const Error&) {  // nothing on a failed device can be freed
      communicator_ = nullptr;
    }
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void exchange(const NcclOrder& order, const std::byte* held, std::byte* wanted) override {
    for (const NcclOrder::Part& one : order.own) {
      const memory::DeviceCopy copy = plain_copy(held, wanted + one.at, one.bytes);
      stream_->copy({&copy, 1});
    }
    if (!order.sends.empty() || !order.receives.empty()) {
      runtime_->on_device(device_, [&] { post(order, held, wanted); });
    }
    memory::wait_until_done(*stream_);
  }

 private:
  void post(const NcclOrder& order, const std::byte* held, std::byte* wanted) const {
    check(api_, api_.group_start(), "ncclGroupStart");
    int failed = success;
    const auto keep = [&](int result) { failed = failed == success ? result : failed; };
    for (const NcclOrder::Part& one : order.sends) {
      keep(api_.send(held + one.at, static_cast<std::size_t>(one.bytes), type_of_bytes, one.member, communicator_,
                     stream_->native()));
    }
    for (const NcclOrder::Part& one : order.receives) {
      keep(api_.receive(wanted + one.at, static_cast<std::size_t>(one.bytes), type_of_bytes, one.member, communicator_,
                        stream_->native()));
    }
    const int ended = api_.group_end();  // also after an error: the group would stay open
    check(api_, failed, "ncclSend or ncclRecv");
    check(api_, ended, "ncclGroupEnd");
  }

  const Api& api_;
  std::shared_ptr<memory::DeviceRuntime> runtime_;  // owners: this process and its users
  int device_;
  std::unique_ptr<memory::DeviceStream> stream_;
  Communicator* communicator_ = nullptr;
};

}  // namespace

NcclOrder nccl_order_of(const Setup& setup, const Case& job, int member, ByteCount held_bytes) {
  NcclOrder order;
  ByteCount sent = 0;
  ByteCount received = 0;
  Planner planner = planner_of(setup, job);
  for (const Flow& flow : planner.totals(job.source.lost).flows) {
    if (flow.bytes == 0) continue;
    const int from = to_int(flow.source);  // source ranks are the first members
    const int to = member_of_target(setup, job, flow.target);
    if (from == member && to != member) {
      if (sent + flow.bytes > held_bytes) sent = 0;  // several may be sent the same bytes
      order.sends.push_back({to, sent, flow.bytes});
      sent += flow.bytes;
    }
    if (to == member) {
      (from == member ? order.own : order.receives).push_back({from, received, flow.bytes});
      received += flow.bytes;
    }
  }
  return order;
}

Bytes make_nccl_loop_id() {
  const Api& api = require_api();
  UniqueId id;
  check(api, api.unique_id(&id), "ncclGetUniqueId");
  Bytes bytes;
  transport::append(bytes, id);
  return bytes;
}

std::unique_ptr<NcclLoop> open_nccl_loop(const Bytes& id, int member, int members, int device) {
  const Api& api = require_api();
  memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) throw Error(ErrorCode::unsupported, "there is no device: " + found.why_not);
  transport::ByteView rest = id;
  const auto unique = transport::take<UniqueId>(rest);
  if (!unique || !rest.empty()) throw Error(ErrorCode::invalid_argument, "this is no id of an NCCL group");
  return std::make_unique<Loop>(api, std::move(found.runtime), *unique, member, members, device);
}

}  // namespace shardwire::perf
