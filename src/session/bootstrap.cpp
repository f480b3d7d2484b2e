// SPDX-License-Identifier: Apache-2.0
#include "shardwire/bootstrap.hpp"

#include <fmt/core.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional<std::string>(text);
}

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}='{}' is not a number from {} to {}", name, text, least, most));
  }
  return value;
}

// What each launcher exports; the first whose both names are set wins.
struct Launcher {
  const char* rank;
  const char* size;
  const char* local_size;  // all members on one host when equal to size; may be null
};
constexpr Launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", nullptr},
    {"SLURM_PROCID", "SLURM_NTASKS", nullptr},
};
constexpr int default_master_port = 29500;  // torchrun's

Bytes read_key(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || text.empty()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("SHARDWIRE_JOB_KEY_FILE: cannot read a key from '{}'", path));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

}  // namespace

Bootstrap bootstrap_from_env() {
  Bootstrap result;
  const Launcher* launcher = nullptr;
  for (const Launcher& one : launchers) {
    if (variable(one.rank) && variable(one.size)) {
      launcher = &one;
      break;
    }
  }
  if (launcher == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                "RANK and WORLD_SIZE are not set: start with torchrun, mpirun or srun, or fill a Bootstrap by hand");
  }
  constexpr int most_members = 1 << 24;
  result.world_size = number(launcher->size, *variable(launcher->size), 1, most_members);
  result.rank = number(launcher->rank, *variable(launcher->rank), 0, result.world_size - 1);

  const auto master = variable("MASTER_ADDR");
  const auto local_size = launcher->local_size == nullptr ? std::nullopt : variable(launcher->local_size);
  if (local_size) result.local_size = number(launcher->local_size, *local_size, 1, most_members);
  if (master) {
    result.address = *master;
  } else if (result.world_size > 1 && local_size != variable(launcher->size)) {
    throw Error(ErrorCode::invalid_argument, "MASTER_ADDR is not set: it names the host of member 0");
  }
  if (const auto port = variable("SHARDWIRE_PORT")) {
    result.port = static_cast<std::uint16_t>(number("SHARDWIRE_PORT", *port, 1, 65535));
  } else {
    const auto master_port = variable("MASTER_PORT");
    const int base = master_port ? number("MASTER_PORT", *master_port, 1, 65534) : default_master_port;
    result.port = static_cast<std::uint16_t>(base + 1);
  }
  result.interface = variable("SHARDWIRE_INTERFACE").value_or("");
  if (const auto path = variable("SHARDWIRE_JOB_KEY_FILE")) result.job_key = read_key(*path);
  return result;
}

}  // namespace shardwire
