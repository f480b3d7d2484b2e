// SPDX-License-Identifier: Apache-2.0
// Measures the tcp transport between processes over 127.0.0.1, beside a plain loop of sendmsg and recvmsg on sockets with
// the same options: one row for each length of runs and way of waiting.
// Outline: options; sockets; what one member does in a turn; rows.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "perf/measure/processes.hpp"
#include "perf/measure/row.hpp"
#include "perf/program.hpp"
#include "transport/transport.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using support::Descriptor;

constexpr int max_processes = 16;
constexpr int max_repeats = 64;
constexpr int max_turns = 4;
constexpr std::size_t max_call_ranges = 1024;

struct Options {
  std::vector<ByteCount> runs{0, 16384, 4096, 512};
  int pairs = 1;
  int streams = 1;
  ByteCount message_bytes = 4u << 20;
  ByteCount call_bytes = 1u << 20;
  ByteCount buffer_bytes = 0;
  int in_flight = 4;
  int messages = 128;
  int repeats = 7;
  bool spin = false;
  std::string commit;
};

struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t cpu_ns = 0;
};

/// Lies in pages that all processes share; each writes its own spans. Repeat 0 is the one that warms up.
struct Board {
  Barrier barrier;
  std::array<std::array<std::array<Span, max_processes>, max_repeats + 1>, max_turns> spans;
};

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// --- sockets ---

using Ends = std::array<Descriptor, 2>;

Ends connected(ByteCount buffer_bytes) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const auto set_buffers = [&](const Descriptor& socket) {
    const int bytes = static_cast<int>(buffer_bytes);
    if (bytes == 0) return;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  };
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_buffers(listener);
  require(::bind(listener.get(), raw, length) == 0 && ::listen(listener.get(), 1) == 0, "listen");
  ::getsockname(listener.get(), raw, &length);
  Ends ends{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Descriptor()};
  set_buffers(ends[0]);
  require(::connect(ends[0].get(), raw, length) == 0, "connect");
  ends[1].reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  require(ends[1].get() >= 0, "accept");
  return ends;
}

/// Sockets of a pair, made before its processes are.
struct Pair {
  Ends plain;
  Ends words;  // the fabrics' addresses
  std::vector<Ends> streams;
};

// --- a member ---

/// Memory that messages are cut out of, one after the other: every other run, or all of it where runs are 0.
class Slots {
 public:
  Slots(ByteCount run_bytes, ByteCount message_bytes, std::byte fill)
      : run_bytes_(run_bytes), message_bytes_(message_bytes), memory_(span() * count, fill) {}
  [[nodiscard]] std::vector<transport::Memory> ranges(int message) {
    std::byte* at = memory_.data() + static_cast<ByteCount>(message) % count * span();
    if (run_bytes_ == 0) return {{at, message_bytes_, {}}};
    std::vector<transport::Memory> out;
    for (ByteCount i = 0; i < message_bytes_ / run_bytes_; ++i)
      out.push_back({at + 2 * i * run_bytes_, run_bytes_, {}});
    return out;
  }

 private:
  static constexpr ByteCount count = 16;
  [[nodiscard]] ByteCount span() const { return run_bytes_ == 0 ? message_bytes_ : 2 * message_bytes_; }
  ByteCount run_bytes_;
  ByteCount message_bytes_;
  std::vector<std::byte> memory_;
};

/// Ranges as they are handed to the kernel, less those that are done.
class Vectors {
 public:
  explicit Vectors(const std::vector<transport::Memory>& ranges) {
    for (const transport::Memory& range : ranges) entries_.push_back({range.address, range.bytes});
  }
  [[nodiscard]] bool empty() const { return first_ == entries_.size(); }
  /// Of one call.
  msghdr call(ByteCount at_most) {
    msghdr out{};
    ByteCount bytes = 0;
    std::size_t count = 0;
    for (; first_ + count < entries_.size() && count < max_call_ranges && bytes < at_most; ++count) {
      bytes += entries_[first_ + count].iov_len;
    }
    part_ = {};
    out.msg_iov = entries_.data() + first_;
    out.msg_iovlen = count;
    if (count == 1 && bytes > at_most) {  // a part of a long one
      part_ = {entries_[first_].iov_base, at_most};
      out.msg_iov = &part_;
    }
    return out;
  }
  void done(ByteCount bytes) {
    while (bytes > 0) {
      iovec& entry = entries_[first_];
      const std::size_t part = std::min<std::size_t>(bytes, entry.iov_len);
      entry.iov_base = static_cast<std::byte*>(entry.iov_base) + part;
      entry.iov_len -= part;
      bytes -= part;
      if (entry.iov_len == 0) ++first_;
    }
  }

 private:
  std::vector<iovec> entries_;
  std::size_t first_ = 0;
  iovec part_{};
};

/// One process: half of a pair.
class Member {
 public:
  Member(const Options& options, Pair& pair, bool sends, ByteCount run_bytes)
      : options_(options),
        sends_(sends),
        slots_(run_bytes, options.message_bytes, sends ? std::byte{1} : std::byte{2}),
        plain_(std::move(pair.plain[sends ? 0 : 1])),
        fabric_(transport::choose("tcp").open()) {
    const Descriptor words = std::move(pair.words[sends ? 0 : 1]);
    std::vector<transport::OpenSocket> sockets;
    for (Ends& ends : pair.streams) sockets.push_back(std::move(ends[sends ? 0 : 1]));
    const Bytes mine = fabric_->address();
    Bytes peer(mine.size());
    require(::write(words.get(), mine.data(), mine.size()) == static_cast<ssize_t>(mine.size()), "write");
    require(::recv(words.get(), peer.data(), peer.size(), MSG_WAITALL) == static_cast<ssize_t>(peer.size()), "read");
    endpoint_ = fabric_->connect({.address = peer, .same_host = true, .sockets = std::move(sockets)});
    fabric_->on_message([this](transport::Incoming& incoming) {
      incoming.receive(slots_.ranges(posted_++), [this](const transport::Outcome& outcome) {
        failed_ = failed_ || outcome;
        ++done_;
      });
    });
  }

  void plain() {
    for (int message = 0; message < options_.messages; ++message) {
      Vectors vectors(slots_.ranges(message));
      while (!vectors.empty()) {
        const msghdr call = vectors.call(options_.call_bytes);
        auto copy = call;
        const ssize_t bytes = sends_ ? ::sendmsg(plain_.get(), &copy, 0) : ::recvmsg(plain_.get(), &copy, 0);
        require(bytes > 0, "the plain loop");
        vectors.done(static_cast<ByteCount>(bytes));
      }
    }
  }
  void fabric(bool spins) {
    posted_ = done_ = 0;
    while (done_ < options_.messages) {
      for (; sends_ && posted_ < options_.messages && posted_ < done_ + options_.in_flight; ++posted_) {
        const auto ranges = slots_.ranges(posted_);
        const std::vector<transport::ConstMemory> from(ranges.begin(), ranges.end());
        endpoint_->send({}, from, [this](const transport::Outcome& outcome) {
          failed_ = failed_ || outcome;
          ++done_;
        });
      }
      if (fabric_->progress() || spins || !fabric_->arm()) continue;
      pollfd entry{.fd = fabric_->event_descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 1000);
    }
    if (failed_) throw std::runtime_error("a message failed");
  }

 private:
  const Options& options_;
  bool sends_;
  Slots slots_;
  Descriptor plain_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  int posted_ = 0;
  int done_ = 0;
  bool failed_ = false;
};

struct Turn {
  const char* name;
  void (*act)(Member& member);
};
constexpr std::array turns{
    Turn{"plain", [](Member& member) { member.plain(); }},
    Turn{"sleeping", [](Member& member) { member.fabric(false); }},
    Turn{"spinning", [](Member& member) { member.fabric(true); }},
};

std::size_t turns_of(const Options& options) {
  return options.spin ? turns.size() : turns.size() - 1;
}

void take_turns(Board& board, const Options& options, Member& member, int process) {
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    for (std::size_t turn = 0; turn < turns_of(options); ++turn) {
      Span& span = board.spans[turn][static_cast<std::size_t>(repeat)][static_cast<std::size_t>(process)];
      board.barrier.wait();
      span.cpu_ns = -clock_ns(CLOCK_PROCESS_CPUTIME_ID);
      span.begin_ns = clock_ns(CLOCK_MONOTONIC);
      turns[turn].act(member);
      span.end_ns = clock_ns(CLOCK_MONOTONIC);
      span.cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    }
  }
  board.barrier.wait();  // nobody goes before all are done
}

// --- rows ---

struct Times {
  Spread wall;
  Spread cpu;
};

Times times_of(const Board& board, std::size_t turn, const Options& options) {
  std::vector<double> wall;
  std::vector<double> cpu;
  for (int repeat = 1; repeat <= options.repeats; ++repeat) {
    Span all{std::numeric_limits<std::int64_t>::max(), 0, 0};
    for (int process = 0; process < 2 * options.pairs; ++process) {
      const Span& span = board.spans[turn][static_cast<std::size_t>(repeat)][static_cast<std::size_t>(process)];
      all.begin_ns = std::min(all.begin_ns, span.begin_ns);
      all.end_ns = std::max(all.end_ns, span.end_ns);
      all.cpu_ns += span.cpu_ns;
    }
    wall.push_back(static_cast<double>(all.end_ns - all.begin_ns) * 1e-9);
    cpu.push_back(static_cast<double>(all.cpu_ns) * 1e-9);
  }
  return {spread_of(wall), spread_of(cpu)};
}

void print_rows(const Board& board, const Options& options, ByteCount run_bytes) {
  const Times plain = times_of(board, 0, options);
  const auto bytes = static_cast<ByteCount>(options.pairs * options.messages) * options.message_bytes;
  for (std::size_t turn = 0; turn < turns_of(options); ++turn) {
    const Times times = times_of(board, turn, options);
    nlohmann::ordered_json row;
    row["name"] = fmt::format("perf_tcp {}, {}", run_bytes == 0 ? "contiguous" : fmt::format("runs of {}", run_bytes),
                              turns[turn].name);
    row["options"] = fmt::format("{} pairs, {} streams, messages of {}, buffers {}", options.pairs, options.streams,
                                 options.message_bytes, options.buffer_bytes);
    row["commit"] = commit(options.commit);
    row["machine"] = machine();
    row["versions"] = versions();
    row["processes"] = 2 * options.pairs;
    row["repeats"] = options.repeats;
    row["run_bytes"] = run_bytes;
    row["seconds"] = times.wall.median;
    row["seconds_min"] = times.wall.least;
    row["seconds_max"] = times.wall.most;
    row["bytes"] = bytes;
    row["bytes_per_second"] = static_cast<double>(bytes) / times.wall.median;
    row["bound"] = "plain";
    row["bound_seconds"] = plain.wall.median;
    row["bound_seconds_min"] = plain.wall.least;
    row["bound_seconds_max"] = plain.wall.most;
    row["ratio"] = plain.wall.median / times.wall.median;
    row["cpu_ratio"] = plain.cpu.median / times.cpu.median;
    row["cpu_seconds"] = times.cpu.median;
    if (turn > 0) perf::print_row(row);
    fmt::print(stderr, "{:<36} {}: {:>5.2f} GB/s [{:.2f}, {:.2f}], {:.2f} of plain; by processor time {:.2f}\n",
               row["name"].get<std::string>(), row["options"].get<std::string>(),
               static_cast<double>(bytes) / times.wall.median * 1e-9,
               static_cast<double>(bytes) / times.wall.most * 1e-9,
               static_cast<double>(bytes) / times.wall.least * 1e-9, row["ratio"].get<double>(),
               row["cpu_ratio"].get<double>());
  }
}

void measure(const Options& options, ByteCount run_bytes) {
  std::vector<Pair> pairs(static_cast<std::size_t>(options.pairs));
  for (Pair& pair : pairs) {
    pair.plain = connected(options.buffer_bytes);
    pair.words = connected(0);
    for (int i = 0; i < options.streams; ++i) pair.streams.push_back(connected(options.buffer_bytes));
  }
  const auto board_pages = shared_pages(sizeof(Board));
  Board& board = *new (board_pages.get()) Board;
  board.barrier.open(2 * options.pairs);
  std::vector<Child> children;
  for (int process = 0; process < 2 * options.pairs; ++process) {
    children.push_back({fmt::format("process {}", process), [&, process] {
                          Member member(options, pairs[static_cast<std::size_t>(process / 2)], process % 2 == 0,
                                        run_bytes);
                          take_turns(board, options, member, process);
                        }});
  }
  run_children(children, std::chrono::seconds(300), [](pid_t) {});
  print_rows(board, options, run_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  perf::Program program("perf_tcp", "Measures the tcp transport against plain sendmsg and recvmsg", options.commit);
  CLI::App& app = program.options();
  app.add_option("--runs", options.runs, "Bytes of a run, divisors of a message's; 0: contiguous")->delimiter(',');
  app.add_option("--pairs", options.pairs, "Pairs of processes at once")->check(CLI::Range(1, max_processes / 2));
  app.add_option("--streams", options.streams, "Sockets of a pair")->check(CLI::Range(1, 16));
  app.add_option("--message-bytes", options.message_bytes, "Of each message")->check(CLI::PositiveNumber);
  app.add_option("--call-bytes", options.call_bytes, "Of one call of the plain loop")->check(CLI::PositiveNumber);
  app.add_option("--buffer-bytes", options.buffer_bytes, "SO_SNDBUF and SO_RCVBUF; 0: the kernel's choice");
  app.add_option("--in-flight", options.in_flight, "Messages of a sender at a time")->check(CLI::PositiveNumber);
  app.add_option("--messages", options.messages, "Messages of each pair in a turn")->check(CLI::PositiveNumber);
  app.add_flag("--spin", options.spin, "Also look for progress all the time, which takes a core for each process");
  app.add_option("--repeats", options.repeats, "Timed repeats; one more warms up")->check(CLI::Range(1, max_repeats));
  return program.run(argc, argv, [&] {
    for (const ByteCount run_bytes : options.runs) {
      if (run_bytes > 0 && options.message_bytes % run_bytes != 0) throw CLI::ValidationError("--runs", "no divisor");
      measure(options, run_bytes);
    }
    return 0;
  });
}
