// SPDX-License-Identifier: Apache-2.0
#include "control/bootstrap.hpp"

#include <fmt/core.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "control/key_file.hpp"
#include "control/pmix.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/error.hpp"
#include "support/environment.hpp"
#include "support/module.hpp"

namespace shardwire {

namespace {

using support::variable;

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}='{}' is not a number from {} to {}", name, text, least, most));
  }
  return value;
}

// Variables that each launcher exports; the first launcher whose rank and size are both set wins.
struct Launcher {
  const char* rank;
  const char* size;        // null: taken from PMIx
  const char* local_size;  // if equal to size, all members are on one host; may be null
  const char* part;        // distinguishes jobs of one Slurm allocation; may be null
  bool pmix;               // its ranks are those of PMIx, if PMIx is available
};
constexpr Launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", nullptr, false},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", true},
    {"PMI_RANK", "PMI_SIZE", nullptr, nullptr, false},
    {"SLURM_PROCID", "SLURM_NTASKS", nullptr, "SLURM_STEP_ID", true},
    {"PMIX_RANK", nullptr, nullptr, "PMIX_NAMESPACE", true},
};
constexpr int default_master_port = 29500;  // torchrun's
constexpr int max_members = 1 << 24;

// Below the range of ephemeral ports.
constexpr unsigned first_derived_port = 20000;
constexpr unsigned derived_ports = 32767 - first_derived_port + 1;

const Launcher* find_launcher() {
  for (const Launcher& one : launchers) {
    if (variable(one.rank) && (one.size == nullptr || variable(one.size))) return &one;
  }
  return nullptr;
}

// The step's variable comes first: an allocation may be larger.
bool on_one_node() {
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (const auto nodes = variable(name)) return nodes == "1";
  }
  return false;
}

// Number of members on this host by the launcher's variables.
int local_size(const Launcher& launcher, int world_size) {
  if (launcher.local_size != nullptr) {
    if (const auto text = variable(launcher.local_size)) return number(launcher.local_size, *text, 1, max_members);
  }
  const bool slurm = std::string_view(launcher.rank) == "SLURM_PROCID";
  return slurm && on_one_node() ? world_size : 0;
}

// FNV-1a: all members of a job have to derive the same port, whatever their build.
std::uint16_t derived_port(std::string_view run_id) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : run_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::uint16_t>(first_derived_port + hash % derived_ports);
}

std::optional<std::uint16_t> own_port() {
  const auto port = variable("SHARDWIRE_PORT");
  if (!port) return std::nullopt;
  return static_cast<std::uint16_t>(number("SHARDWIRE_PORT", *port, 1, 65535));
}

std::uint16_t rendezvous_port(const std::string& run_id) {
  if (const auto port = own_port()) return *port;
  if (const auto master_port = variable("MASTER_PORT")) {
    return static_cast<std::uint16_t>(number("MASTER_PORT", *master_port, 1, 65534) + 1);
  }
  return run_id.empty() ? default_master_port + 1 : derived_port(run_id);
}

// Fills the fields that no launcher provides.
void add_own_settings(Bootstrap& bootstrap) {
  bootstrap.run_id = run_id_of_environment();
  bootstrap.interface = variable("SHARDWIRE_INTERFACE").value_or("");
  if (const auto path = variable("SHARDWIRE_JOB_KEY_FILE"))
    bootstrap.job_key = read_key_file(*path, "SHARDWIRE_JOB_KEY_FILE");
}

// Empty, with the reason, if this build has no PMIx. It is an error if the named server does not answer.
std::optional<PmixJob> pmix_job(std::string& why_not) {
  if (!variable("PMIX_NAMESPACE") || !variable("PMIX_RANK")) {
    why_not = "the launcher offers none (srun does with --mpi=pmix)";
    return std::nullopt;
  }
  const support::Module module = support::load_module("pmix");
  why_not = module.why_not;
  if (module.table == nullptr) return std::nullopt;
  return static_cast<const PmixModule*>(module.table)->join();
}

// Launcher variables and PMIx have to agree.
void go_by_pmix(Bootstrap& bootstrap, const Launcher& launcher, const PmixJob& job) {
  const bool same = bootstrap.rank == job.rank && bootstrap.world_size == job.world_size;
  if (launcher.size != nullptr && !same) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}={} of {}={}, but PMIx says rank {} of {} in '{}': set MASTER_ADDR to go by the variables",
                    launcher.rank, bootstrap.rank, launcher.size, bootstrap.world_size, job.rank, job.world_size,
                    job.name_space));
  }
  bootstrap.rank = job.rank;
  bootstrap.world_size = job.world_size;
  if (bootstrap.local_size == 0) bootstrap.local_size = job.local_size;
  if (variable("MASTER_ADDR")) return;
  bootstrap.store = job.store;
  bootstrap.port = own_port().value_or(0);
}

}  // namespace

std::string run_id_of_environment() {
  if (const auto own = variable("SHARDWIRE_RUN_ID")) return *own;
  if (const auto elastic = variable("TORCHELASTIC_RUN_ID"); elastic && elastic != "none") return *elastic;
  if (const auto job = variable("SLURM_JOB_ID")) {
    const Launcher* launcher = find_launcher();
    const auto part = launcher == nullptr || launcher->part == nullptr ? std::nullopt : variable(launcher->part);
    return part ? fmt::format("{}.{}", *job, *part) : *job;
  }
  return variable("PMIX_NAMESPACE").value_or("");
}

Bootstrap bootstrap_from_env() {
  const Launcher* launcher = find_launcher();
  if (launcher == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                "RANK and WORLD_SIZE are not set: start with torchrun, mpirun or srun, or fill a Bootstrap by hand");
  }
  Bootstrap result;
  add_own_settings(result);
  if (launcher->size != nullptr) {
    result.world_size = number(launcher->size, *variable(launcher->size), 1, max_members);
    result.rank = number(launcher->rank, *variable(launcher->rank), 0, result.world_size - 1);
    result.local_size = local_size(*launcher, result.world_size);
  }
  result.port = rendezvous_port(result.run_id);
  const auto master = variable("MASTER_ADDR");
  if (master) result.address = *master;
  if (launcher->size != nullptr && (master || result.world_size == 1)) return result;
  std::string why_not;
  if (launcher->pmix) {
    if (const auto job = pmix_job(why_not)) {
      go_by_pmix(result, *launcher, *job);
      return result;
    }
  }
  if (launcher->size != nullptr && result.local_size == result.world_size) return result;
  throw Error(ErrorCode::invalid_argument, fmt::format("MASTER_ADDR is not set: it names the host of member 0{}{}",
                                                       why_not.empty() ? "" : "; PMIx cannot say it: ", why_not));
}

Bootstrap bootstrap_from_store(std::shared_ptr<KeyValueStore> store, int rank, int world_size) {
  if (!store) throw Error(ErrorCode::invalid_argument, "bootstrap_from_store: there is no store");
  Bootstrap result;
  add_own_settings(result);
  result.rank = rank;
  result.world_size = world_size;
  result.store = std::move(store);
  result.port = own_port().value_or(0);
  const Launcher* launcher = find_launcher();
  if (launcher != nullptr && world_size_from_env() == world_size) {
    result.local_size = local_size(*launcher, world_size);
  }
  return result;
}

std::optional<int> world_size_from_env() {
  const Launcher* launcher = find_launcher();
  if (launcher == nullptr || launcher->size == nullptr) return std::nullopt;
  return number(launcher->size, *variable(launcher->size), 1, max_members);
}

}  // namespace shardwire
