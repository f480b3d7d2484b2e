// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>

#include "session/hang.hpp"

// The other process of hang_test.cpp. Arguments: what to do, members of the job, port of the rendezvous, number of the
// socket to the test.
using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// Says that its state is ready, publishes when it is told to, and serves until it is told to end.
void be_source(Session& session, int socket) {
  Tensor tensor;
  tensor.fill();
  write_frame(socket, {});
  read_frame(socket);
  const Publication publication = session.publish(tensor.catalog());
  read_frame(socket);
}

// Publishes a small tensor at once, and serves until it is told to end.
void be_small_source(Session& session, int socket) {
  SmallTensor tensor(session);
  tensor.shard.fill(1);
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  read_frame(socket);
}

// The same, but it has forked: a child that lives on holds none of its connections. Says the child's number.
void be_forked_source(Session& session, int socket) {
  SmallTensor tensor(session);
  tensor.shard.fill(1);
  const Publication publication = session.publish(tensor.catalog());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(240);
    while (true) ::pause();
  }
  write_frame(socket, std::as_bytes(std::span(&child, 1)));
  read_frame(socket);
}

// Publishes a small tensor, and says what became of its membership.
void be_member(Session& session, int socket) {
  SmallTensor tensor(session);
  tensor.shard.fill(1);
  const Publication publication = session.publish(tensor.catalog());
  write_frame(socket, {});
  std::string end = "it ended well";
  try {
    session.gather("never", {}, 50s);
  } catch (const Error& error) {
    end = error.what();
  }
  write_frame(socket, std::as_bytes(std::span(end)));
}

// Restores twice; in the middle of the first it stops itself. Says what came of each.
void be_reader(Session& session, int socket, Way way) {
  Tensor tensor;
  write_frame(socket, {});
  for (int round = 0; round < 2; ++round) {
    read_frame(socket);
    std::string result = "wrong";
    bool stopped = false;  // the callback is copied for each call
    try {
      Restore restore = session.restore(tensor.catalog(), by(way, 30s));
      if (round == 0) {
        restore.on_progress(
            [&stopped](const Progress& progress) {
              if (stopped || progress.done_bytes < enough_bytes) return;
              stopped = true;
              ::kill(::getpid(), SIGSTOP);
            },
            1ms);
        write_frame(socket, {});
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
    ::alarm(240);  // whatever happens to the test
    if (argc != 5) return 2;
    const std::string task = argv[1];
    const int socket = std::atoi(argv[4]);
    Session session =
        Session::join(member(1, std::atoi(argv[2]), static_cast<std::uint16_t>(std::atoi(argv[3]))), quick());
    if (task == "source") be_source(session, socket);
    if (task == "small source") be_small_source(session, socket);
    if (task == "forked source") be_forked_source(session, socket);
    if (task == "member") be_member(session, socket);
    if (task == "straight reader") be_reader(session, socket, Way::straight);
    if (task == "packed reader") be_reader(session, socket, Way::packed);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer: %s\n", error.what());
    return 1;
  }
}
