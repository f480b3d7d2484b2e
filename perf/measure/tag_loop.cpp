// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/tag_loop.hpp"

#include "shardwire/error.hpp"
#include "support/module.hpp"

namespace shardwire::perf {
namespace {

const support::Module& module() {
  static const support::Module loaded = support::load_module("perf-ucx");
  return loaded;
}

const TagModule& table() {
  if (module().table == nullptr) throw Error(ErrorCode::unsupported, module().why_not);
  return *static_cast<const TagModule*>(module().table);
}

}  // namespace

std::string why_no_tag_loop() {
  return module().why_not;
}

std::unique_ptr<TagLoop> open_tag_loop(bool tcp) {
  return table().open(tcp);
}

std::string tag_loop_version() {
  return table().version();
}

}  // namespace shardwire::perf
