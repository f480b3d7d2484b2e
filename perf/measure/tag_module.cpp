// SPDX-License-Identifier: Apache-2.0
// The module libshardwire-perf-ucx: the part of `shardwire perf` that calls UCX directly.
#include "perf/measure/tag_loop.hpp"

#include <algorithm>
#include <deque>

#include "perf/measure/ucx_side.hpp"
#include "support/module_build.hpp"

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
  std::size_t left;      ///< bytes not posted yet
  std::size_t position;  ///< in the buffer, of the next message
  std::size_t buffer_bytes;
  const char* operation;
  std::deque<ucs_status_ptr_t> requests{};

  [[nodiscard]] bool done() const { return left == 0 && requests.empty(); }
  /// post(position, size) returns a request. True if a message was posted or has ended.
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
  explicit UcxTagLoop(bool tcp) : side_(tcp, UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP, nullptr) {}

  [[nodiscard]] std::vector<std::byte> address() const override { return side_.address(); }
  std::size_t connect(std::span<const std::byte> peer) override;
  void exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) override;

 private:
  UcxSide side_;
  std::vector<ucp_ep*> peers_;
};

std::size_t UcxTagLoop::connect(std::span<const std::byte> peer) {
  peers_.push_back(side_.connect(peer));
  return peers_.size() - 1;
}

void UcxTagLoop::exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) {
  ucp_worker* const worker = side_.worker();
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
        return ucp_tag_send_nbx(peers_.at(sends[i].peer), sends[i].buffer.data() + at, size, tag, &params);
      });
      done = done && out[i].done();
    }
    if (done) return;
    if (ucp_worker_progress(worker) != 0 || moved) continue;
    side_.wait(style.idle);
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
