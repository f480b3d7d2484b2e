// SPDX-License-Identifier: Apache-2.0
// Configuration of UCX before it opens anything.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {
namespace {

std::string printed_value(const ucp_config_t* config, std::string_view key) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);
  const std::size_t at = printed.find(key);
  if (at == std::string::npos) return {};
  const std::size_t first = at + key.size();
  return printed.substr(first, printed.find('\n', first) - first);
}

// By UCX_TLS, or in ucx.conf, which only UCX reads. "all" is UCX's default.
bool user_has_chosen(const ucp_config_t* config) {
  const char* const variable = std::getenv("UCX_TLS");
  if (variable != nullptr && *variable != '\0') return true;
  const std::string configured = printed_value(config, "UCX_TLS=");
  return !configured.empty() && configured != "all";
}

bool is_at_least(unsigned major, unsigned minor) {
  const Version version = version_of_library();
  return version.major > major || (version.major == major && version.minor >= minor);
}

Config read_config() {
  ucp_config_t* raw = nullptr;
  check(ucp_config_read(nullptr, nullptr, &raw), "read the UCX configuration");
  return Config(raw);
}

// For a transport or a memory domain. Newer versions prefix its name, and only warn of unknown names.
void modify_component(ucp_config_t* config, const std::string& prefix, const std::string& name, const char* value) {
  (void)ucp_config_modify(config, name.c_str(), value);
  if (is_at_least(1, 14)) (void)ucp_config_modify(config, (prefix + name).c_str(), value);
}

Config serving_config(bool with_cuda) {
  Config config = read_config();
  ucp_config_t* const raw = config.get();
  // By default only hardware: UCX's TCP listeners trust every client. Without cuda_copy, GPU memory would count as host
  // memory; a UCX that lacks it works without.
  const char* const hardware = with_cuda ? "ib,cuda_copy" : "ib";
  if (!user_has_chosen(raw)) check(ucp_config_modify(raw, "TLS", hardware), "choose UCX transports");
  // Makes shared-memory endpoints closable at once. Lifelines detect deaths: UCX itself needs 20 s.
  check(ucp_config_modify(raw, "MM_ERROR_HANDLING", "y"), "allow shared memory to fail");
  if (std::getenv("UCX_TCP_RX_SEG_SIZE") == nullptr) {
    // Closable endpoints send long messages over TCP in segments, one system call each.
    modify_component(raw, "TCP_", "RX_SEG_SIZE", tcp_segment);
  }
  // UCX would keep memory registered after deregistration, and peers could go on reading it: up to about 1.13 in a
  // cache of its memory domains, and also in a cache of its own.
  modify_component(raw, "IB_", "REG_METHODS", "direct");
  (void)ucp_config_modify(raw, "RCACHE_ENABLE", "n");
  return config;
}

ContextHandle open_context(const ucp_config_t* config, std::uint64_t features, const char* what) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = features;
  params.name = "shardwire";
  params.mt_workers_shared = 1;  // any thread registers memory
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config, &context), what);
  return ContextHandle(context);
}

}  // namespace

// No RMA, no atomics: without hardware support UCX emulates them in software and then checks no key. Hardware reads by
// peers need no feature here.
ContextHandle open_serving_context(bool with_cuda) {
  return open_context(serving_config(with_cuda).get(), UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "open a UCX context");
}

ContextHandle open_reading_context(const std::string& device, const std::string& transports) {
  const Config config = read_config();
  check(ucp_config_modify(config.get(), "TLS", transports.c_str()), "choose UCX transports");
  check(ucp_config_modify(config.get(), "NET_DEVICES", device.c_str()), "choose a UCX device");
  // A read that the NIC cannot execute must fail: no peer answers reads in software.
  if (is_at_least(1, 21)) check(ucp_config_modify(config.get(), "PROTO_EMULATION_ENABLE", "n"), "keep reads to NICs");
  return open_context(config.get(), UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP, "open a UCX context for reads");
}

std::string chosen_value(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value != nullptr && *value != '\0') return value;
  return printed_value(read_config().get(), std::string(variable) + "=");
}

bool registers_on_any_thread(ucp_context* context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_THREAD_MODE;
  return ucp_context_query(context, &attributes) == UCS_OK && attributes.thread_mode == UCS_THREAD_MODE_MULTI;
}

bool knows_cuda(ucp_context* context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context, &attributes) == UCS_OK &&
         (attributes.memory_types & (std::uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) != 0;
}

Version version_of_library() {
  Version version;
  ucp_get_version(&version.major, &version.minor, &version.release);
  return version;
}

std::string library_version() {
  const Version version = version_of_library();
  return fmt::format("ucx {}.{}.{}", version.major, version.minor, version.release);
}

}  // namespace shardwire::transport::ucx
