// SPDX-License-Identifier: Apache-2.0
// Measures the tcp transport between processes over 127.0.0.1, beside a plain loop of sendmsg and recvmsg on sockets with
// the same options: one row for each length of runs.
// Outline: options; sockets; what one member does in a turn; turns and rows.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>

#include "perf/program.hpp"
#include "perf/turns.hpp"
#include "transport/transport.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using support::Descriptor;

constexpr int repeats = 7;
constexpr int messages = 128;  // of each pair in a turn
constexpr ByteCount message_bytes = 4u << 20;
constexpr int in_flight = 4;                   // messages of a sender
constexpr std::size_t max_call_ranges = 1024;  // of the plain loop
constexpr ByteCount max_call_bytes = 1u << 20;

struct Options {
  std::vector<ByteCount> runs{0, 16384, 4096, 512};
  int pairs = 1;
  int streams = 1;
  std::string commit;
};

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// --- sockets ---

using Ends = std::array<Descriptor, 2>;

Ends connected() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(::bind(listener.get(), raw, length) == 0 && ::listen(listener.get(), 1) == 0, "listen");
  ::getsockname(listener.get(), raw, &length);
  Ends ends{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Descriptor()};
  require(::connect(ends[0].get(), raw, length) == 0, "connect");
  ends[1].reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  require(ends[1].get() >= 0, "accept");
  return ends;
}

/// Sockets of a pair, made before its processes are.
struct Pair {
  Ends plain;
  std::vector<Ends> streams;
};

// --- a member ---

/// Memory that messages are cut out of, one after the other: every other run, or all of it where runs are 0.
class Slots {
 public:
  Slots(ByteCount run_bytes, std::byte fill) : run_bytes_(run_bytes), memory_(span() * count, fill) {}
  [[nodiscard]] std::vector<transport::Memory> ranges(int message) {
    std::byte* at = memory_.data() + static_cast<ByteCount>(message) % count * span();
    if (run_bytes_ == 0) return {{at, message_bytes, {}}};
    std::vector<transport::Memory> out;
    for (ByteCount i = 0; i < message_bytes / run_bytes_; ++i) out.push_back({at + 2 * i * run_bytes_, run_bytes_, {}});
    return out;
  }

 private:
  static constexpr ByteCount count = 16;
  [[nodiscard]] ByteCount span() const { return run_bytes_ == 0 ? message_bytes : 2 * message_bytes; }
  ByteCount run_bytes_;
  std::vector<std::byte> memory_;
};

/// One process: half of a pair.
class Member {
 public:
  Member(Pair& pair, bool sends, ByteCount run_bytes)
      : sends_(sends),
        slots_(run_bytes, sends ? std::byte{1} : std::byte{2}),
        plain_(std::move(pair.plain[sends ? 0 : 1])),
        fabric_(transport::choose("tcp").open()) {
    std::vector<transport::OpenSocket> sockets;
    for (Ends& ends : pair.streams) sockets.push_back(std::move(ends[sends ? 0 : 1]));
    const Bytes mine = fabric_->address();
    Bytes peer(mine.size());
    require(::write(plain_.get(), mine.data(), mine.size()) == static_cast<ssize_t>(mine.size()), "write");
    require(::recv(plain_.get(), peer.data(), peer.size(), MSG_WAITALL) == static_cast<ssize_t>(peer.size()), "read");
    endpoint_ = fabric_->connect({.address = peer, .same_host = true, .sockets = std::move(sockets)});
    fabric_->on_message([this](transport::Incoming& incoming) {
      incoming.receive(slots_.ranges(posted_++), [this](const transport::Outcome& outcome) {
        failed_ = failed_ || outcome;
        ++done_;
      });
    });
  }

  void plain() {
    std::vector<iovec> call;
    ByteCount bytes = 0;
    for (int message = 0; message < messages; ++message) {
      for (const transport::Memory& range : slots_.ranges(message)) {
        for (ByteCount at = 0; at < range.bytes; at += max_call_bytes) {
          call.push_back({range.address + at, std::min(range.bytes - at, max_call_bytes)});
          bytes += call.back().iov_len;
          if (call.size() == max_call_ranges || bytes >= max_call_bytes) move(call, bytes);
        }
      }
      if (bytes > 0) move(call, bytes);
    }
  }
  void fabric() {
    posted_ = done_ = 0;
    while (done_ < messages) {
      for (; sends_ && posted_ < messages && posted_ < done_ + in_flight; ++posted_) {
        const auto ranges = slots_.ranges(posted_);
        const std::vector<transport::ConstMemory> from(ranges.begin(), ranges.end());
        endpoint_->send({}, from, [this](const transport::Outcome& outcome) {
          failed_ = failed_ || outcome;
          ++done_;
        });
      }
      if (fabric_->progress() || !fabric_->arm()) continue;
      pollfd entry{.fd = fabric_->event_descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 1000);
    }
    if (failed_) throw std::runtime_error("a message failed");
  }

 private:
  // All of the ranges in one call, which blocks until the kernel has taken or brought them.
  void move(std::vector<iovec>& ranges, ByteCount& bytes) const {
    msghdr call{};
    call.msg_iov = ranges.data();
    call.msg_iovlen = ranges.size();
    const ssize_t moved = sends_ ? ::sendmsg(plain_.get(), &call, 0) : ::recvmsg(plain_.get(), &call, MSG_WAITALL);
    require(moved == static_cast<ssize_t>(bytes), "the plain loop");
    ranges.clear();
    bytes = 0;
  }

  bool sends_;
  Slots slots_;
  Descriptor plain_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  int posted_ = 0;
  int done_ = 0;
  bool failed_ = false;
};

// --- turns and rows ---

void print_row(const TurnBoard& board, const Options& options, ByteCount run_bytes) {
  const std::string runs = run_bytes == 0 ? "contiguous" : fmt::format("runs of {}", run_bytes);
  const TurnTimes times = board.times(1, repeats);
  auto row = turn_row({.name = fmt::format("perf_tcp {}, sleeping", runs),
                       .commit = options.commit,
                       .processes = 2 * options.pairs,
                       .repeats = repeats,
                       .bytes = static_cast<ByteCount>(options.pairs * messages) * message_bytes,
                       .times = times,
                       .bound = "plain",
                       .bound_times = board.times(0, repeats)});
  // Buffers are the kernel's choice; older rows have others.
  row["options"] =
      fmt::format("{} pairs, {} streams, messages of {}, buffers 0", options.pairs, options.streams, message_bytes);
  row["run_bytes"] = run_bytes;
  row["cpu_seconds"] = times.cpu.median;
  print_turn(row);
}

void measure(const Options& options, ByteCount run_bytes) {
  std::vector<Pair> pairs(static_cast<std::size_t>(options.pairs));
  for (Pair& pair : pairs) {
    pair.plain = connected();
    for (int i = 0; i < options.streams; ++i) pair.streams.push_back(connected());
  }
  const auto board_pages = shared_pages(sizeof(TurnBoard));
  TurnBoard& board = *new (board_pages.get()) TurnBoard;
  board.open(2 * options.pairs);
  std::vector<Child> children;
  for (int process = 0; process < 2 * options.pairs; ++process) {
    children.push_back({fmt::format("process {}", process), [&, process] {
                          Member member(pairs[static_cast<std::size_t>(process / 2)], process % 2 == 0, run_bytes);
                          board.take_turns(process, repeats, 2,
                                           [&](std::size_t turn) { turn == 0 ? member.plain() : member.fabric(); });
                        }});
  }
  run_children(children, std::chrono::seconds(300), [](pid_t) {});
  print_row(board, options, run_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  perf::Program program("perf_tcp", "Measures the tcp transport against plain sendmsg and recvmsg", options.commit);
  CLI::App& app = program.options();
  app.add_option("--runs", options.runs, "Bytes of a run, divisors of a message's; 0: contiguous")->delimiter(',');
  app.add_option("--pairs", options.pairs, "Pairs of processes at once")
      ->check(CLI::Range(1, TurnBoard::max_processes / 2));
  app.add_option("--streams", options.streams, "Sockets of a pair")->check(CLI::Range(1, 16));
  return program.run(argc, argv, [&] {
    for (const ByteCount run_bytes : options.runs) {
      if (run_bytes > 0 && message_bytes % run_bytes != 0) throw CLI::ValidationError("--runs", "no divisor");
      measure(options, run_bytes);
    }
    return 0;
  });
}
