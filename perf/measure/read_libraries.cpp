// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/read_libraries.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "shardwire/error.hpp"
#include "support/module.hpp"

namespace shardwire::perf {
namespace {

// Another library needs a line here, its name in Against, and a file like get_module.cpp.
struct Library {
  Against against;
  std::string_view module;
};
constexpr std::array libraries{
    Library{Against::ucp_get, "perf-ucx-get"},
    Library{Against::fi_read, "perf-libfabric"},
};

const Library* find(Against against) {
  const auto* const found = std::find_if(libraries.begin(), libraries.end(),
                                         [&](const Library& library) { return library.against == against; });
  return found == libraries.end() ? nullptr : found;
}

const support::Module& module(Against against) {
  static std::array<support::Module, libraries.size()> loaded = [] {
    std::array<support::Module, libraries.size()> all;
    std::transform(libraries.begin(), libraries.end(), all.begin(),
                   [](const Library& library) { return support::load_module(library.module); });
    return all;
  }();
  return loaded[static_cast<std::size_t>(find(against) - libraries.data())];
}

const ReadModule& table(Against against) {
  const support::Module& one = module(against);
  if (one.table == nullptr) throw Error(ErrorCode::unsupported, one.why_not);
  return *static_cast<const ReadModule*>(one.table);
}

}  // namespace

bool is_read_loop(Against against) {
  return find(against) != nullptr;
}

std::unique_ptr<ReadLoop> open_read_loop(Against against, bool tcp) {
  return table(against).open(tcp);
}

std::string read_loop_version(Against against) {
  return table(against).version();
}

}  // namespace shardwire::perf
