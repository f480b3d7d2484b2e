// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds FOLDER: writes each seed to FOLDER/TARGET/NAME, in place of what is in these folders.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "fuzz/seeds.hpp"

namespace {

void write(const std::filesystem::path& root) {
  const auto seeds = shardwire::fuzz::all_seeds();
  for (const auto& seed : seeds) std::filesystem::remove_all(root / seed.target);
  for (const auto& seed : seeds) {
    std::filesystem::create_directories(root / seed.target);
    std::ofstream file(root / seed.target / seed.name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.bytes.data()), static_cast<std::streamsize>(seed.bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + (root / seed.target / seed.name).string());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  write(argv[1]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
