// SPDX-License-Identifier: Apache-2.0
// Runs each target on each of its kept inputs, corpus/TARGET/* and found/TARGET/*, without libFuzzer.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/seeds.hpp"
#include "fuzz/targets.hpp"

BOOST_AUTO_TEST_SUITE(fuzz_replay)

namespace {

namespace fs = std::filesystem;
using shardwire::Bytes;

const fs::path root_of_inputs = [] {
  const char* const given = std::getenv("FUZZ_INPUTS");
  return given == nullptr ? "tests/fuzz" : given;
}();

Bytes content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read " + path.string());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Kept {
  shardwire::fuzz::Target target;
  fs::path path;
};
std::ostream& operator<<(std::ostream& out, const Kept& kept) {
  return out << kept.path.parent_path().parent_path().filename().string() << "/" << kept.target.name << "/"
             << kept.path.filename().string();
}

std::vector<Kept> all_kept() {
  std::vector<Kept> all;
  for (const char* const origin : {"corpus", "found"}) {
    for (const auto& target : shardwire::fuzz::targets) {
      const fs::path folder = root_of_inputs / origin / target.name;
      if (!fs::is_directory(folder)) continue;
      for (const auto& entry : fs::directory_iterator(folder)) all.push_back({target, entry.path()});
    }
  }
  std::ranges::sort(all, {}, &Kept::path);
  return all;
}

}  // namespace

BOOST_DATA_TEST_CASE(the_input_breaks_no_promise, boost::unit_test::data::make(all_kept()), kept) {
  // Of the exact size, so that a sanitizer sees each byte read past the end.
  const Bytes bytes = content_of(kept.path);
  try {
    kept.target.run(bytes);
  } catch (const std::exception& error) {
    BOOST_ERROR(kept << ": " << error.what());
  }
}

BOOST_AUTO_TEST_CASE(each_target_has_inputs_in_a_folder_of_its_name) {
  std::map<std::string, std::size_t, std::less<>> inputs;
  for (const Kept& kept : all_kept()) ++inputs[std::string(kept.target.name)];
  for (const auto& target : shardwire::fuzz::targets) BOOST_TEST(inputs[std::string(target.name)] > 0U, target.name);
  for (const char* const origin : {"corpus", "found"}) {
    if (!fs::exists(root_of_inputs / origin)) continue;
    for (const auto& entry : fs::directory_iterator(root_of_inputs / origin)) {
      BOOST_TEST(inputs.contains(entry.path().filename().string()), entry.path() << " belongs to no target");
    }
  }
}

// Remake them with: fuzz_seeds tests/fuzz/corpus
BOOST_AUTO_TEST_CASE(the_corpus_is_what_the_generator_makes) {
  std::map<fs::path, Bytes> made;
  for (const auto& seed : shardwire::fuzz::all_seeds()) {
    BOOST_TEST(made.emplace(fs::path(seed.target) / seed.name, seed.bytes).second, seed.name << " is made twice");
  }
  std::size_t kept = 0;
  const fs::path root = root_of_inputs / "corpus";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    ++kept;
    const auto found = made.find(entry.path().lexically_relative(root));
    BOOST_TEST((found != made.end() && found->second == content_of(entry.path())),
               entry.path() << " differs from what fuzz_seeds makes");
  }
  BOOST_TEST(kept == made.size());
}

BOOST_AUTO_TEST_SUITE_END()
