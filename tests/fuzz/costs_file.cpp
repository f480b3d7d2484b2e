// SPDX-License-Identifier: Apache-2.0
// Calibration files, see include/shardwire/costs.hpp.
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "fuzz/target.hpp"
#include "move/tuning.hpp"
#include "shardwire/costs.hpp"
#include "support/descriptors.hpp"

namespace shardwire::fuzz {

namespace {

/// A file without a place in a file system.
class MemoryFile {
 public:
  explicit MemoryFile(Input content) : file_(::memfd_create("costs", MFD_CLOEXEC)) {
    require(file_.get() >= 0 && std::cmp_equal(::write(file_.get(), content.data(), content.size()), content.size()),
            "there is memory for a file");
  }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  support::Descriptor file_;
};

/// The entries of a model for all transports of an accepted file.
std::vector<MeasuredCost> measured_of(const CostModel& model, Input file) {
  std::set<std::string> transports{"tcp"};  // "local" copies have the same cost under every name
  const auto* const text = reinterpret_cast<const char*>(file.data());
  const auto json = nlohmann::json::parse(text, text + file.size());
  for (const auto& entry : json.at("costs")) transports.insert(entry.at("transport").get<std::string>());
  std::vector<MeasuredCost> measured;
  for (const std::string& transport : transports) {
    for (const MemoryKind memory : {MemoryKind::host, MemoryKind::cuda}) {
      for (std::size_t i = 0; i < method_count; ++i) {
        const auto method = static_cast<Method>(i);
        measured.push_back({transport, memory, method, model.at(transport, memory, method)});
      }
    }
  }
  return measured;
}

CostModel saved_and_loaded(const CostModel& model, Input file) {
  static const std::string path = "/dev/shm/shardwire-fuzz-costs-" + std::to_string(::getpid());
  const auto& [tcp, kernels] = model.tuning();
  save_calibration(path, "fuzzer", measured_of(model, file), kernels, tcp);
  CostModel loaded = load_costs(path);
  ::unlink(path.c_str());
  return loaded;
}

}  // namespace

void costs_file(Input input) {
  const MemoryFile file(input);
  const Allocation allocation;
  const auto model = accepted([&] { return load_costs(file.path()); }, ErrorCode::invalid_argument);
  allocation.require_at_most(input.size(), 4000, 1u << 20);
  if (!model) return;
  for (const auto& one : measured_of(*model, input)) {
    require(one.cost.latency_seconds >= 0 && one.cost.run_seconds >= 0 && one.cost.bytes_per_second >= 1,
            "costs are no gains");
  }
  const TcpSettings& tcp = model->tuning().tcp;
  require(tcp.request_bytes >= 1 && tcp.streams >= 1 && tcp.streams <= 16, "tcp has streams and requests");
  require(saved_and_loaded(*model, input) == *model, "a model survives being saved");
}

}  // namespace shardwire::fuzz
