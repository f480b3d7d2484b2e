// SPDX-License-Identifier: Apache-2.0
// The module libshardwire-perf-ucx: the part of `shardwire perf` that calls UCX itself.
#include "perf/measure/tag_loop.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "support/module_build.hpp"
#include "transport/ucx/handles.hpp"

namespace shardwire::perf {

using transport::ucx::check;

namespace {

constexpr std::size_t max_in_flight = 4;
constexpr ucp_tag_t tag = 1;

bool is_done(ucs_status_ptr_t request, const char* operation) {
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), operation);
  const ucs_status_t status = ucp_request_check_status(request);
  if (status == UCS_INPROGRESS) return false;
  ucp_request_free(request);
  check(status, operation);
  return true;
}

// One direction between two ends: some messages under way, the rest to be posted.
struct Flow {
  std::size_t left;      ///< bytes that are not posted yet
  std::size_t position;  ///< in the buffer, of the next message
  std::size_t buffer_bytes;
  const char* operation;
  std::deque<ucs_status_ptr_t> requests{};

  [[nodiscard]] bool done() const { return left == 0 && requests.empty(); }
  /// post(position, size) gives a request. True when something was posted or has ended.
  template <typename Post>
  bool advance(std::size_t message_bytes, Post post) {
    bool moved = false;
    while (!requests.empty() && is_done(requests.front(), operation)) {
      requests.pop_front();
      moved = true;
    }
    while (left > 0 && requests.size() < max_in_flight) {
      const std::size_t size = std::min(message_bytes, left);
      if (position + size > buffer_bytes) position = 0;
      requests.push_back(post(position, size));
      position += size;
      left -= size;
      moved = true;
    }
    return moved;
  }
};

class UcxTagLoop final : public TagLoop {
 public:
  explicit UcxTagLoop(bool tcp);
  ~UcxTagLoop() override;
  UcxTagLoop(const UcxTagLoop&) = delete;
  UcxTagLoop& operator=(const UcxTagLoop&) = delete;

  [[nodiscard]] std::vector<std::byte> address() const override;
  std::size_t connect(std::span<const std::byte> peer) override;
  void exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) override;

 private:
  transport::ucx::ContextHandle context_;
  transport::ucx::WorkerHandle worker_;
  std::vector<ucp_ep*> endpoints_;  // closing them needs the worker's progress: in the destructor
};

UcxTagLoop::UcxTagLoop(bool tcp) {
  ucp_config_t* read = nullptr;
  check(ucp_config_read(nullptr, nullptr, &read), "read the configuration of UCX");
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> config(read, ucp_config_release);
  if (tcp) {
    check(ucp_config_modify(config.get(), "TLS", "tcp,self"), "choose the transports of UCX");
    if (std::getenv("UCX_NET_DEVICES") == nullptr) {  // a job on several hosts names them
      check(ucp_config_modify(config.get(), "NET_DEVICES", "lo"), "choose the devices of UCX");
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config.get(), &context), "open a UCX context");
  context_.reset(context);
  const ucp_worker_params_t worker_params{};
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context, &worker_params, &worker), "create a UCX worker");
  worker_.reset(worker);
}

UcxTagLoop::~UcxTagLoop() {
  for (ucp_ep* const endpoint : endpoints_) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t const request = ucp_ep_close_nbx(endpoint, &params);
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_.get());
    ucp_request_free(request);
  }
}

std::vector<std::byte> UcxTagLoop::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(ucp_worker_get_address(worker_.get(), &address, &size), "get the address of a UCX worker");
  const auto* const first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> out(first, first + size);
  ucp_worker_release_address(worker_.get(), address);
  return out;
}

std::size_t UcxTagLoop::connect(std::span<const std::byte> peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  ucp_ep* endpoint = nullptr;
  check(ucp_ep_create(worker_.get(), &params, &endpoint), "make a UCX endpoint");
  endpoints_.push_back(endpoint);
  return endpoints_.size() - 1;
}

void UcxTagLoop::exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) {
  ucp_worker* const worker = worker_.get();
  const ucp_request_param_t params{};
  std::vector<Flow> out;
  for (const Send& send : sends) out.push_back({send.bytes, 0, send.buffer.size(), "send a tagged message"});
  Flow in{receive.size(), 0, receive.size(), "receive a tagged message"};
  while (true) {
    bool moved = in.advance(style.message_bytes, [&](std::size_t at, std::size_t size) {
      return ucp_tag_recv_nbx(worker, receive.data() + at, size, tag, ~ucp_tag_t{0}, &params);
    });
    bool done = in.done();
    for (std::size_t i = 0; i < sends.size(); ++i) {
      moved |= out[i].advance(style.message_bytes, [&](std::size_t at, std::size_t size) {
        return ucp_tag_send_nbx(endpoints_.at(sends[i].peer), sends[i].buffer.data() + at, size, tag, &params);
      });
      done = done && out[i].done();
    }
    if (done) return;
    if (ucp_worker_progress(worker) != 0 || moved) continue;
    if (style.idle == Idle::yield) {
      ::sched_yield();
    } else {
      check(ucp_worker_wait(worker), "wait for a UCX worker");
    }
  }
}

std::unique_ptr<TagLoop> open(bool tcp) {
  return std::make_unique<UcxTagLoop>(tcp);
}

std::string version() {
  return std::string("ucx ") + ucp_get_version_string();
}

}  // namespace
}  // namespace shardwire::perf

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  static constexpr shardwire::perf::TagModule table{shardwire::perf::open, shardwire::perf::version};
  return &table;
}

}  // extern "C"
