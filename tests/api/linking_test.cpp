// SPDX-License-Identifier: Apache-2.0
// Built outside the tree against the installed library: the effects of linking it on a process, and those of joining.
//   linking_test TRANSPORT         joins over it; this loads UCX if TRANSPORT is ucx
//   linking_test TRANSPORT REASON  joining must fail with an error that names the reason
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <shardwire/shardwire.hpp>
#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  std::printf("%s: %s\n", holds ? "holds" : "FAILED", what.c_str());
  if (!holds) ++failures;
}

bool is_mapped(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

bool has_ucx() {
  return is_mapped("/libucp.so") || is_mapped("/libucs.so");
}

/// Signals for which a handler is installed.
std::string handled_signals() {
  std::string out;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) out += ' ' + std::to_string(signal);
  }
  return out;
}

void expect_untouched(const std::string& when) {
  expect(!has_ucx(), "no UCX " + when);
  const std::string handled = handled_signals();
  expect(handled.empty(), "no signal handler " + when + handled);
}

shardwire::Session join(const std::string& transport) {
  return shardwire::Session::join({.world_size = 1}, {.transport = transport, .join_timeout = 30s});
}

void expect_joins(const std::string& transport) {
  auto session = join(transport);
  expect(session.transports().size() == 1 && session.transports().front().starts_with(transport),
         "joined over " + session.transports().front());
  expect(has_ucx() == (transport == "ucx"), "UCX is there when it is used");
  session.close(30s);
}

// Catches by type: the library's exception type is the same as this program's.
void expect_refused(const std::string& transport, const std::string& reason) {
  try {
    join(transport).close(30s);
    expect(false, "joining over " + transport + " is refused");
  } catch (const shardwire::Error& error) {
    expect(error.code() == shardwire::ErrorCode::unsupported, "the code is " + std::string(to_string(error.code())));
    expect(std::string(error.what()).find(reason) != std::string::npos, error.what());
  }
}

}  // namespace

int main(int count, char** words) try {
  if (count < 2) return 2;
  expect_untouched("before main");
  shardwire::Catalog catalog(shardwire::Rank{0}, 1);
  std::vector<float> memory(12);
  catalog.add({{"weight", "exp_avg"}, shardwire::DType::f32, {3, 4}}, shardwire::Layout::replicated(),
              shardwire::View{.data = memory.data()});
  expect_untouched("with a catalog");
  if (count == 2) {
    expect_joins(words[1]);
  } else {
    expect_refused(words[1], words[2]);
    expect_joins("loopback");
  }
  return failures == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
