// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/provider.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "transport/gpu_direct.hpp"
#include "transport/libfabric/caches.hpp"

namespace shardwire::transport::libfabric {
namespace {

// The modes are those that we support; the answer lists the ones that we must follow. No operation order is requested:
// a list ends when all its reads have ended.
Info make_hints(bool device_memory) {
  Info hints(fi_allocinfo());
  if (!hints) throw Error(ErrorCode::out_of_resources, "no memory for libfabric's hints");
  hints->caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (device_memory) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->domain_attr->threading = FI_THREAD_SAFE;  // any thread registers memory
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  return hints;
}

std::string chosen() {
  const char* const value = std::getenv("FI_PROVIDER");
  return value == nullptr ? std::string() : value;
}

Provider find_best(GetInfo get_info, std::uint32_t library_version, bool named, bool device_memory) {
  fi_info* raw = nullptr;
  const int status = get_info(api_version, nullptr, nullptr, 0, make_hints(device_memory).get(), &raw);
  const Info all(raw);
  Provider best;
  if (status != 0) {
    best.why_not = fmt::format("no provider reads by itself here ({})", fi_strerror(-status));
    return best;
  }
  std::set<std::string> refusals;
  for (const fi_info* one = all.get(); one != nullptr; one = one->next) {
    auto judged = rules_from(*one, library_version);
    if (const auto* refusal = std::get_if<std::string>(&judged)) {
      refusals.insert(fmt::format("{}: {}", one->fabric_attr->prov_name, *refusal));
      continue;
    }
    auto& rules = std::get<Rules>(judged);
    if (!rules.hardware && !named) {
      refusals.insert(fmt::format("{}: no hardware reads for it; FI_PROVIDER has to name it", rules.provider));
    } else if (!best.info || (rules.hardware && !best.rules.hardware)) {
      best.info.reset(fi_dupinfo(one));
      best.rules = std::move(rules);
    }
  }
  if (best.info) return best;
  best.why_not = "no provider is fit for reads";
  for (const std::string& refusal : refusals) best.why_not += "; " + refusal;
  return best;
}

}  // namespace

Provider find_provider(GetInfo get_info, std::uint32_t library_version, bool named, bool gpus) {
  Provider plain = find_best(get_info, library_version, named, false);
  if (!gpus || !plain.rules.hardware) return plain;
  Provider with_devices = find_best(get_info, library_version, named, true);
  // Peers without GPUs requested the former, and both must agree on the meaning of each rule.
  const bool same = with_devices.rules.device_memory && with_devices.rules.device == plain.rules.device &&
                    protocol_of(with_devices.rules) == protocol_of(plain.rules);
  return same ? std::move(with_devices) : std::move(plain);
}

Provider find_provider(Asked asked) {
  const std::string& caches = why_caches_may_be_on();
  switch_caches_off();
  const std::string names = chosen();
  Provider found =
      find_provider(fi_getinfo, fi_version(), asked == Asked::by_name && !names.empty(), peer_memory().nvidia);
  if (found.rules.hardware) found.warning = caches;
  if (!found.info && !names.empty()) found.why_not += fmt::format(" (FI_PROVIDER is \"{}\")", names);
  return found;
}

std::string library_version() {
  const std::uint32_t version = fi_version();
  return fmt::format("libfabric {}.{}", FI_MAJOR(version), FI_MINOR(version));
}

}  // namespace shardwire::transport::libfabric
