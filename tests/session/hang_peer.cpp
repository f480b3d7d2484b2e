// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>

#include "session/device_ipc.hpp"
#include "session/exchange_loss.hpp"
#include "session/hang.hpp"

// The other process of hang_test.cpp and similar tests. Arguments: task, members of the job, port of the rendezvous,
// number of the socket to the test.
using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// Reports that its state is ready, publishes on command, reports that, and serves until the test sends the end.
void be_source(Session& session, int socket) {
  Tensor tensor;
  tensor.fill();
  write_frame(socket, {});
  read_frame(socket);
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// Publishes a small tensor at once, and serves until the test sends the end.
void be_small_source(Session& session, int socket) {
  SmallTensor tensor(session);
  tensor.shard.fill(1);
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// The same after fork(): the child lives on and holds none of its connections. Reports the child's process number.
void be_forked_source(Session& session, int socket) {
  SmallTensor tensor(session);
  tensor.shard.fill(1);
  const Publication publication = session.publish(tensor.catalog());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(600);
    while (true) ::pause();
  }
  write_frame(socket, std::as_bytes(std::span(&child, 1)));
  read_frame(socket);
}

// Allocates and fills arenas without end, in one session, with or without publishing them; reports once that it has
// begun.
void be_allocating(Session& session, int socket, bool publishes) {
  for (int round = 0;; ++round) {
    SmallTensor small(session);
    const Arena large = session.allocate((round % 16 + 1) * (std::size_t{1} << 20));
    std::memset(large.data(), 1, large.size_bytes());
    if (publishes) session.publish(small.catalog()).retire(5s);
    if (round == 0) write_frame(socket, {});
  }
}

// Publishes a large tensor in an arena at once, and serves until the test sends the end.
void be_arena_source(Session& session, int socket) {
  Tensor tensor(session);
  tensor.fill();
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// One of two ranks that hold the same tensor: member 1 is layout rank 0, member 2 is layout rank 1. Where they are not equal,
// the number of the layout rank is the seed.
void be_replica(Session& session, int socket, bool in_arena, bool equal) {
  std::optional<Tensor> tensor;
  in_arena ? tensor.emplace(session) : tensor.emplace();
  tensor->fill(static_cast<std::uint8_t>(equal ? 0 : session.rank() - 1));
  const Publication publication = session.publish(tensor->catalog(Rank{session.rank() - 1}, 2));
  write_frame(socket, {});
  read_frame(socket);
}

// Reports that its state is ready, publishes the only layout rank on command, reports that, and serves until the test sends the
// end: each member that does so is a holder of that rank.
void be_copy(Session& session, int socket, bool in_arena) {
  std::optional<Tensor> tensor;
  in_arena ? tensor.emplace(session) : tensor.emplace();
  tensor->fill();
  write_frame(socket, {});
  read_frame(socket);
  const Publication publication = session.publish(tensor->catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// The same with digests. On command it changes a bit in each quarter of its memory, without a word to anybody.
void be_rotting_replica(Session& session, int socket, bool in_arena) {
  std::optional<Tensor> tensor;
  in_arena ? tensor.emplace(session) : tensor.emplace();
  tensor->fill();
  const Publication publication = session.publish(tensor->catalog(Rank{session.rank() - 1}, 2), {.digest = true});
  write_frame(socket, {});
  read_frame(socket);
  for (const std::size_t quarter : {0U, 1U, 2U, 3U}) {
    tensor->bytes()[tensor_bytes / 4 * quarter + 100] ^= std::byte{1};
  }
  write_frame(socket, {});
  read_frame(socket);
}

// The same in its own memory, which it registers.
void be_registered_source(Session& session, int socket) {
  Tensor tensor;
  tensor.fill();
  const Registration registration = session.register_memory(tensor.view());
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// Publishes another state on each command, in the same memory, which readers have lost by then.
void be_replacing_source(Session& session, int socket) {
  Tensor tensor;
  for (std::uint8_t seed = 0;; ++seed) {
    tensor.fill(seed);
    const Registration registration = session.register_memory(tensor.view());
    Publication publication = session.publish(tensor.catalog());
    write_frame(socket, {});
    read_frame(socket);
    try {
      publication.retire(100ms);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out) throw;
    }
  }
}

// Forks on each command; the children write into the memory that is read.
void be_forking_source(Session& session, int socket) {
  Tensor tensor;
  tensor.fill();
  const Registration registration = session.register_memory(tensor.view());
  const Publication publication = session.publish(tensor.catalog());
  ::signal(SIGCHLD, SIG_IGN);
  write_frame(socket, {});
  while (true) {
    read_frame(socket);
    if (::fork() != 0) continue;
    ::signal(SIGSEGV, [](int) { ::_exit(0); });  // a child may lack the pages that hardware reads
    std::memset(tensor.bytes().data(), 0x44, tensor.bytes().size());
    ::_exit(0);
  }
}

// Publishes memory of a device, and serves. On "retake", another allocation replaces that memory while it is published;
// on "republish", that allocation is published.
void be_device_source(Session& session, int socket, UsedDevices& devices, bool large) {
  SharedAllocation memory(devices, 0, large);
  memory.fill(1);
  Publication publication = session.publish(memory.catalog());
  while (true) {
    write_frame(socket, {});
    const auto order = read_frame(socket);
    if (order.size() == std::string_view("retake").size()) {
      memory.take_anew();
      memory.fill(3);
    } else {
      publication.retire(5s);
      publication = session.publish(memory.catalog());
    }
  }
}

// Exchanges on each command, which says what, and reports what came of it.
void be_swapping(Session& session, int socket) {
  write_frame(socket, {});
  while (true) {
    const auto order = read_frame(socket);
    Swap swap;
    std::memcpy(&swap, order.data(), sizeof swap);
    SwappingMember own(session, swap);
    Exchange exchange = own.start(session);
    write_frame(socket, frame_of(own.outcome_of([&] { exchange.wait(); })));
  }
}

// Restores twice, the first time at this deadline, and reports each result. Stops itself in the middle of the first restore.
void be_reader(Session& session, int socket, std::optional<RestoreMethod> method, Duration first_deadline) {
  Tensor tensor;
  write_frame(socket, {});
  for (int round = 0; round < 2; ++round) {
    read_frame(socket);
    std::string result = "wrong";
    bool looked = false;  // shared: the callback is copied for each call
    bool stopped = false;
    try {
      RestoreOptions options = by(method, round == 0 ? first_deadline : patience);
      if (round == 0) options.ingress_bytes_per_second = tensor_bytes;  // a busy machine may look late at its progress
      Restore restore = session.restore(tensor.catalog(), options);
      if (round == 0) {
        restore.on_progress(
            [&, socket](const Progress& progress) {
              if (!std::exchange(looked, true)) write_frame(socket, {});
              if (stopped || progress.done_bytes < enough_bytes) return;
              stopped = true;
              ::raise(SIGSTOP);
            },
            1ms);
      }
      restore.wait();
      if (tensor.is_filled()) result = "good";
    } catch (const Error& error) {
      result = std::string("error: ") + error.what();
    }
    write_frame(socket, std::as_bytes(std::span(result)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    ::alarm(600);  // in case the test ends without ending it
    if (argc != 5) return 2;
    const std::string task = argv[1];
    const int socket = std::atoi(argv[4]);
    const auto is = [&](std::string_view word) { return task.find(word) != std::string::npos; };
    std::optional<UsedDevices> devices;
    if (is("device")) {
      devices.emplace(1, 1);
      if (is("handle")) (*devices)->share(FakeDevices::Sharing::handle);
      if (is("chunks")) (*devices)->share(FakeDevices::Sharing::chunks);
    }
    const int number = is("replica") || is("swapping") || (is("copy") && !is("zcopy")) ? task.back() - '0' : 1;
    Session session =
        Session::join(member(number, std::atoi(argv[2]), static_cast<std::uint16_t>(std::atoi(argv[3]))), quick());
    if (task == "source") be_source(session, socket);
    if (task == "small source") be_small_source(session, socket);
    if (task == "allocating") be_allocating(session, socket, false);
    if (task == "publishing") be_allocating(session, socket, true);
    if (task == "arena source") be_arena_source(session, socket);
    if (is("swapping")) be_swapping(session, socket);
    if (is("rotting")) be_rotting_replica(session, socket, is("arena"));
    if (is("replica") && !is("rotting")) be_replica(session, socket, is("arena"), !is("unequal"));
    if (is("copy") && !is("zcopy")) be_copy(session, socket, is("arena"));
    if (task == "registered source") be_registered_source(session, socket);
    if (task == "replacing source") be_replacing_source(session, socket);
    if (task == "forking source") be_forking_source(session, socket);
    if (task == "forked source") be_forked_source(session, socket);
    if (devices) be_device_source(session, socket, *devices, is("large"));
    std::optional<RestoreMethod> method;
    if (is("zcopy")) method = RestoreMethod::zcopy;
    if (is("packed")) method = RestoreMethod::packed;
    // A hasty reader gives its first restore a short deadline.
    if (is("reader")) be_reader(session, socket, method, is("hasty") ? 15s : patience);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer: %s\n", error.what());
    return 1;
  }
}
