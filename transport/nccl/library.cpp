// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <atomic>
#include <memory>
#include <vector>

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
  // Check the version first: an old library also lacks functions, and the version is the better message.
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
  return {new Api(api), {}};  // lives as long as the library, which is never unloaded
}

namespace {

constexpr const char* library_file = "libnccl.so.2";

struct Loaded {
  bool before = false;
  FoundApi found;
};
const Loaded& load_once() {
  static const Loaded loaded = [] {
    void* const there = ::dlopen(library_file, RTLD_NOW | RTLD_NOLOAD);
    if (there != nullptr) ::dlclose(there);
    return Loaded{there != nullptr, load_api(library_file)};
  }();
  return loaded;
}

std::atomic<const Api*> used_by_tests = nullptr;

}  // namespace

FoundApi find_api() {
  if (const Api* const api = used_by_tests) return {api, {}};
  return load_once().found;
}

void use_api(const Api* api) {
  used_by_tests = api;
}

std::string doubt_about_library(std::span<const std::string> loaded, bool loaded_before) {
  std::vector<std::string> copies;
  for (const std::string& file : loaded) {
    if (file.substr(file.find_last_of('/') + 1).starts_with("libnccl.so")) copies.push_back(file);
  }
  if (copies.size() > 1)
    return fmt::format("this process has {} copies of NCCL: {}", copies.size(), fmt::join(copies, ", "));
  if (loaded_before) return {};
  return fmt::format(
      "{} was not loaded before shardwire loaded it, so the communicator belongs to another library, or to one that "
      "was linked in",
      library_file);
}

std::string doubt_about_library() {
  if (used_by_tests != nullptr) return {};
  std::vector<std::string> files;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
        return 0;
      },
      &files);
  return doubt_about_library(files, load_once().before);
}

}  // namespace shardwire::transport::nccl
