// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fmt/core.h>

#include <memory>

#include "transport/nccl/api.hpp"

namespace shardwire::transport::nccl {

namespace {

template <typename Function>
bool find(void* library, const char* name, Function*& function, std::string& why_not) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function != nullptr) return true;
  why_not = fmt::format("it has no {}", name);
  return false;
}

bool find_all(void* library, Api& api, std::string& why_not) {
  const auto take = [&](const char* name, auto& function) { return find(library, name, function, why_not); };
  return take("ncclGetVersion", api.version) && take("ncclGetUniqueId", api.unique_id) &&
         take("ncclCommInitRankConfig", api.init) && take("ncclCommFinalize", api.finalize) &&
         take("ncclCommDestroy", api.destroy) && take("ncclCommAbort", api.abort) &&
         take("ncclCommGetAsyncError", api.async_error) && take("ncclCommCount", api.count) &&
         take("ncclCommUserRank", api.user_rank) && take("ncclCommCuDevice", api.device) &&
         take("ncclGroupStart", api.group_start) && take("ncclGroupEnd", api.group_end) && take("ncclSend", api.send) &&
         take("ncclRecv", api.receive) && take("ncclGetErrorString", api.error_string) &&
         take("ncclGetLastError", api.last_error);
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

FoundApi load_api(const char* file) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return {nullptr, fmt::format("NCCL cannot be loaded: {}", why == nullptr ? file : why)};
  }
  Api api;
  int version = 0;
  // The version first: an old library also lacks functions, and that it is old says more.
  std::string why_not;
  if (!find(library, "ncclGetVersion", api.version, why_not) || api.version(&version) != success) {
    return {nullptr, fmt::format("{} says no version of NCCL", file)};
  }
  if (version < min_version) {
    return {nullptr,
            fmt::format("NCCL {} is too old: {} or newer is needed", version_text(version), version_text(min_version))};
  }
  if (!find_all(library, api, why_not))
    return {nullptr, fmt::format("NCCL {} cannot be used: {}", version_text(version), why_not)};
  return {new Api(api), {}};  // as long as the library, which is never unloaded
}

FoundApi find_api() {
  static const FoundApi found = load_api("libnccl.so.2");
  return found;
}

}  // namespace shardwire::transport::nccl
