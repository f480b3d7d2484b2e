// SPDX-License-Identifier: Apache-2.0
// Built outside the tree against the installed library: restores under another layout and compares every element.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <shardwire/shardwire.hpp>
#include <string>
#include <thread>
#include <vector>

#if SHARDWIRE_VERSION_NUMBER < 100  // 0.1.0; a program may ask at compile time
#error "this version has no sessions"
#endif

using namespace std::chrono_literals;

namespace {

/// Checks that the running library matches the headers, and that the version's numbers match its text.
int wrong_version() {
  const std::string text = std::to_string(SHARDWIRE_VERSION_MAJOR) + '.' + std::to_string(SHARDWIRE_VERSION_MINOR) +
                           '.' + std::to_string(SHARDWIRE_VERSION_PATCH);
  const int number = SHARDWIRE_VERSION_MAJOR * 10000 + SHARDWIRE_VERSION_MINOR * 100 + SHARDWIRE_VERSION_PATCH;
  std::printf("shardwire %s\n", shardwire::version());
  return text == shardwire::version() && text == SHARDWIRE_VERSION && number == SHARDWIRE_VERSION_NUMBER ? 0 : 1;
}

const shardwire::TensorSpec weight{{"layers.0.weight", "exp_avg"}, shardwire::DType::f32, {31, 18}};

/// A port that was free a moment ago.
std::uint16_t free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, length) != 0 || getsockname(listener, generic, &length) != 0)
    std::abort();
  close(listener);
  return ntohs(address.sin_port);
}

/// Calls `visit(local element, global row-major index)` for each element of `rank`.
template <typename Visit>
void for_each_element(const shardwire::Layout& layout, shardwire::Rank rank, Visit visit) {
  for (const auto& [box, local_offset, strides] : layout.boxes_of(weight.shape, rank)) {
    for (auto row = box.lower(0); row < box.upper(0); ++row) {
      for (auto column = box.lower(1); column < box.upper(1); ++column) {
        const auto local = local_offset + (row - box.lower(0)) * strides[0] + (column - box.lower(1)) * strides[1];
        visit(static_cast<std::size_t>(local), row * weight.shape[1] + column);
      }
    }
  }
}

/// One member: publishes its layout rank of `from`, restores its layout rank of `to`. Returns the number of wrong
/// elements.
int member(int rank, int members, std::uint16_t port, const shardwire::Layout& from, const shardwire::Layout& to) {
  const shardwire::Rank place{rank};
  auto session =
      shardwire::Session::join({.rank = rank, .world_size = members, .port = port}, {.transport = "loopback"});

  const auto elements_held = static_cast<std::size_t>(from.local_elements(weight.shape, place));
  auto arena = session.allocate(elements_held * sizeof(float));
  auto* source = reinterpret_cast<float*>(arena.data());
  for_each_element(from, place, [&](std::size_t at, std::int64_t index) { source[at] = static_cast<float>(index); });
  shardwire::Catalog held(place, members);
  held.add(weight, from, shardwire::View{.data = source});
  held.add_value({"", "step"}, std::int64_t{1000});
  auto publication = session.publish(held, {.step = 1000});

  std::vector<float> restored(static_cast<std::size_t>(to.local_elements(weight.shape, place)), -1.0F);
  shardwire::Catalog wanted(place, members);
  wanted.add(weight, to, shardwire::View{.data = restored.data()});
  wanted.add_value({"", "step"});
  auto restore = session.restore(wanted, {.timeout = 30s, .verify = shardwire::Verify::digest});
  restore.wait();

  int wrong = 0;
  for_each_element(to, place, [&](std::size_t at, std::int64_t index) {
    if (restored[at] != static_cast<float>(index)) ++wrong;
  });
  if (std::get<std::int64_t>(restore.value({"", "step"})) != 1000) ++wrong;
  const auto& report = restore.report();
  if (report.needed_bytes != restored.size() * sizeof(float)) ++wrong;
  if (report.moved_bytes + report.local_bytes != report.needed_bytes + report.overread_bytes + report.resent_bytes)
    ++wrong;
  std::printf("member %d of %d: %zu elements, %d wrong\n", rank, members, restored.size(), wrong);

  session.gather("restored", {}, 30s);
  publication.retire(30s);
  session.close(30s);
  return wrong;
}

int lone_member() {
  // Two halves, the right one first in memory, become one dense array.
  const auto from = shardwire::Layout::boxes({{shardwire::Rank{0}, {{{0, 9}, {31, 9}}, {{0, 0}, {31, 9}}}}});
  return member(0, 1, free_port(), from, shardwire::Layout::chunk(0, 1));
}

int two_members() {
  const auto port = free_port();
  int wrong[2] = {1, 1};
  auto run = [&](int rank) {
    try {
      wrong[rank] = member(rank, 2, port, shardwire::Layout::chunk(0, 2), shardwire::Layout::chunk(1, 2));
    } catch (const std::exception& error) {
      std::printf("member %d: %s\n", rank, error.what());
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return wrong[0] + wrong[1];
}

}  // namespace

int main() try {
  const int wrong = wrong_version() + lone_member() + two_members();
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
