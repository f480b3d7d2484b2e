// SPDX-License-Identifier: Apache-2.0
// What UCX is told before it opens anything.
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

// By UCX_TLS, or in ucx.conf, which only UCX reads. "all" is what it takes when nobody has said anything.
bool user_has_chosen(const ucp_config_t* config) {
  const char* const variable = std::getenv("UCX_TLS");
  if (variable != nullptr && *variable != '\0') return true;
  const std::string configured = printed_value(config, "UCX_TLS=");
  return !configured.empty() && configured != "all";
}

bool has_prefixes() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return major > 1 || minor >= 14;
}

Config read_config() {
  ucp_config_t* raw = nullptr;
  check(ucp_config_read(nullptr, nullptr, &raw), "read the UCX configuration");
  Config config(raw);
  // Unasked, hardware alone: what listens on TCP trusts whoever connects.
  if (!user_has_chosen(raw)) check(ucp_config_modify(raw, "TLS", "ib"), "choose UCX transports");
  // Endpoints over shared memory that can be cut off at once. Deaths are noticed by lifelines: UCX's own way needs 20 s.
  check(ucp_config_modify(raw, "MM_ERROR_HANDLING", "y"), "allow shared memory to fail");
  if (std::getenv("UCX_TCP_RX_SEG_SIZE") == nullptr) {
    // Endpoints that can be cut off send long messages over TCP in segments, one system call each.
    // Newer versions have a prefix on it, and only warn of one that they do not know.
    (void)ucp_config_modify(raw, "RX_SEG_SIZE", tcp_segment);
    if (has_prefixes()) (void)ucp_config_modify(raw, "TCP_RX_SEG_SIZE", tcp_segment);
  }
  return config;
}

}  // namespace

ContextHandle open_context() {
  const Config config = read_config();
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // No RMA, no atomics: UCX emulates them in software where the hardware has none, and then checks no key.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "shardwire";
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config.get(), &context), "open a UCX context");
  return ContextHandle(context);
}

std::string library_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("ucx {}.{}.{}", major, minor, release);
}

}  // namespace shardwire::transport::ucx
