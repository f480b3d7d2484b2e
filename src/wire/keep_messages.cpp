// SPDX-License-Identifier: Apache-2.0
#include "wire/keep_messages.hpp"

#include <fmt/format.h>

#include "wire/capnp_output.hpp"
#include "wire/limits.hpp"

namespace shardwire::wire {

namespace {

using Builder = schema::Message::Builder;

constexpr std::size_t max_job_key_bytes = 4096;

void set_numbers(capnp::List<std::uint64_t>::Builder list, const std::vector<std::uint64_t>& numbers) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, numbers[i]);
}

KeepJob read_keep_job(schema::KeepJob::Reader from, Input& in) {
  return {.request = from.getRequest(),
          .session = from.getSession(),
          .address = in.at("KeepJob.address").name(from.getAddress(), max_name_bytes),
          .port = from.getPort(),
          .run_id = in.at("KeepJob.runId").name(from.getRunId(), max_name_bytes),
          .world_size = in.at("KeepJob.worldSize").rank(from.getWorldSize()),
          .job_key = in.at("KeepJob.jobKey").data(from.getJobKey(), max_job_key_bytes),
          .attempt = in.at("KeepJob.attempt").attempt(from.getAttempt()),
          .began_ns = from.getBeganNs()};
}

KeepBegin read_keep_begin(schema::KeepBegin::Reader from, Input& in) {
  KeepBegin begin{.request = from.getRequest(),
                  .publication = in.at("KeepBegin.publication").name(from.getPublication(), max_name_bytes),
                  .step = from.getStep(),
                  .layout_rank = in.at("KeepBegin.place").rank(from.getPlace()),
                  .steps = from.getSteps(),
                  .size_bytes = from.getSizeBytes()};
  for (const std::uint64_t buffer : in.at("KeepBegin.free").numbers(from.getFree(), max_kept_buffers)) {
    begin.free.push_back(buffer);
  }
  if (from.getRestored()) begin.restored = {from.getRestoredStep(), from.getRestoredOrigin()};
  begin.copied = from.getCopied();
  begin.is_copy = from.getIsCopy();
  begin.numa_node = from.getNumaNode();
  if (begin.numa_node < -1) in.at("KeepBegin.numaNode").reject("is below -1");
  return begin;
}

KeepDone read_keep_done(schema::KeepDone::Reader from, Input& in) {
  KeepDone done;
  done.request = from.getRequest();
  done.buffer = from.getBuffer();
  done.manifest = in.at("KeepDone.manifest").data(from.getManifest(), max_message_bytes);
  done.values = in.at("KeepDone.values").data(from.getValues(), max_message_bytes);
  const auto tensors = in.at("KeepDone.tensors").list(from.getTensors());
  done.tensors.reserve(tensors.size());
  for (const auto tensor : tensors) {
    in.at("KeepDone.tensors", done.tensors.size());
    done.tensors.push_back({tensor.getOffsetBytes(), tensor.getSizeBytes(), in.shape(tensor.getStrides())});
  }
  const auto words = in.at("KeepDone.digests").numbers(from.getDigests(), 2 * max_kept_digests);
  if (words.size() % 2 != 0) in.reject("has an odd number of words");
  done.digests.reserve(words.size() / 2);
  for (unsigned i = 0; i < words.size(); i += 2) done.digests.push_back({words[i], words[i + 1]});
  return done;
}

}  // namespace

void write(Builder out, const KeepJob& job) {
  auto to = out.initKeepJob();
  to.setRequest(job.request);
  to.setSession(job.session);
  to.setAddress(text_of(job.address));
  to.setPort(job.port);
  to.setRunId(text_of(job.run_id));
  to.setWorldSize(job.world_size);
  to.setJobKey(data_of(job.job_key));
  to.setAttempt(job.attempt);
  to.setBeganNs(job.began_ns);
}

void write(Builder out, const KeepJoined& joined) {
  auto to = out.initKeepJoined();
  to.setRequest(joined.request);
  to.setAttempt(joined.attempt);
  to.setUnpublished(joined.unpublished);
}

void write(Builder out, const KeepBegin& begin) {
  auto to = out.initKeepBegin();
  to.setRequest(begin.request);
  to.setPublication(text_of(begin.publication));
  to.setStep(begin.step);
  to.setPlace(begin.layout_rank);
  to.setSteps(begin.steps);
  to.setSizeBytes(begin.size_bytes);
  set_numbers(to.initFree(static_cast<unsigned>(begin.free.size())), begin.free);
  to.setCopied(begin.copied);
  to.setIsCopy(begin.is_copy);
  to.setNumaNode(begin.numa_node);
  to.setRestored(begin.restored.has_value());
  if (!begin.restored) return;
  to.setRestoredStep(begin.restored->step);
  to.setRestoredOrigin(begin.restored->origin);
}

void write(Builder out, const KeepBuffer& buffer) {
  auto to = out.initKeepBuffer();
  to.setRequest(buffer.request);
  to.setBuffer(buffer.buffer);
  to.setSizeBytes(buffer.size_bytes);
  to.setDescriptors(buffer.descriptors);
  set_numbers(to.initReleased(static_cast<unsigned>(buffer.released.size())), buffer.released);
}

void write(Builder out, const KeepDone& done) {
  auto to = out.initKeepDone();
  to.setRequest(done.request);
  to.setBuffer(done.buffer);
  to.setManifest(data_of(done.manifest));
  to.setValues(data_of(done.values));
  auto tensors = to.initTensors(static_cast<unsigned>(done.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    const KeptTensor& tensor = done.tensors[i];
    tensors[i].setOffsetBytes(tensor.offset_bytes);
    tensors[i].setSizeBytes(tensor.size_bytes);
    if (tensor.strides.empty()) continue;
    auto strides = tensors[i].initStrides(static_cast<unsigned>(tensor.strides.size()));
    for (unsigned dim = 0; dim < strides.size(); ++dim) strides.set(dim, tensor.strides[dim]);
  }
  if (done.digests.empty()) return;
  auto words = to.initDigests(static_cast<unsigned>(2 * done.digests.size()));
  for (unsigned i = 0; i < done.digests.size(); ++i) {
    words.set(2 * i, done.digests[i].low);
    words.set(2 * i + 1, done.digests[i].high);
  }
}

void write(Builder out, const KeepQuit& quit) {
  auto to = out.initKeepQuit();
  to.setBuffer(quit.buffer);
  to.setForget(quit.forget);
}

void write(Builder out, const Kept& kept) {
  out.initKept().setRequest(kept.request);
}

void write(Builder out, const KeepMembersLost& lost) {
  set_numbers(out.initKeepMembersLost().initCopies(static_cast<unsigned>(lost.copies.size())), lost.copies);
}

void write(Builder out, const KeepStatusRequest& request) {
  out.initKeepStatusRequest().setRequest(request.request);
}

void write(Builder out, const KeepStatus& status) {
  auto to = out.initKeepStatus();
  to.setRequest(status.request);
  to.setJson(text_of(status.json));
}

void write(Builder out, const KeepDrop& drop) {
  auto to = out.initKeepDrop();
  to.setRequest(drop.request);
  to.setPublication(text_of(drop.publication));
}

Message read_keep_message(schema::Message::Reader from, Input& in) {
  using Which = schema::Message::Which;
  switch (from.which()) {
    case Which::KEEP_JOB: return read_keep_job(in.at("KeepJob").pass(from.getKeepJob()), in);
    case Which::KEEP_JOINED: {
      const auto joined = in.at("KeepJoined").pass(from.getKeepJoined());
      return KeepJoined{joined.getRequest(), in.at("KeepJoined.attempt").attempt(joined.getAttempt()),
                        joined.getUnpublished()};
    }
    case Which::KEEP_BEGIN: return read_keep_begin(in.at("KeepBegin").pass(from.getKeepBegin()), in);
    case Which::KEEP_BUFFER: {
      const auto buffer = in.at("KeepBuffer").pass(from.getKeepBuffer());
      KeepBuffer out{buffer.getRequest(), buffer.getBuffer(), buffer.getSizeBytes(), buffer.getDescriptors()};
      if (buffer.getDescriptors() > max_descriptors_per_message) in.at("KeepBuffer.descriptors").reject("are too many");
      for (const std::uint64_t one : in.at("KeepBuffer.released").numbers(buffer.getReleased(), max_kept_buffers)) {
        out.released.push_back(one);
      }
      return out;
    }
    case Which::KEEP_DONE: return read_keep_done(in.at("KeepDone").pass(from.getKeepDone()), in);
    case Which::KEEP_QUIT: {
      const auto quit = in.at("KeepQuit").pass(from.getKeepQuit());
      return KeepQuit{quit.getBuffer(), quit.getForget()};
    }
    case Which::KEPT: return Kept{in.at("Kept").pass(from.getKept()).getRequest()};
    case Which::KEEP_STATUS_REQUEST:
      return KeepStatusRequest{in.at("KeepStatusRequest").pass(from.getKeepStatusRequest()).getRequest()};
    case Which::KEEP_STATUS: {
      const auto status = in.at("KeepStatus").pass(from.getKeepStatus());
      return KeepStatus{status.getRequest(), in.at("KeepStatus.json").name(status.getJson(), max_message_bytes)};
    }
    case Which::KEEP_DROP: {
      const auto drop = in.at("KeepDrop").pass(from.getKeepDrop());
      return KeepDrop{drop.getRequest(), in.at("KeepDrop.publication").name(drop.getPublication(), max_name_bytes)};
    }
    case Which::KEEP_MEMBERS_LOST: {
      const auto lost = in.at("KeepMembersLost").pass(from.getKeepMembersLost());
      KeepMembersLost out;
      for (const std::uint64_t one : in.at("KeepMembersLost.copies").numbers(lost.getCopies(), max_kept_buffers)) {
        out.copies.push_back(one);
      }
      return out;
    }
    default: in.at("Message").reject(fmt::format("is of the unknown kind {}", static_cast<unsigned>(from.which())));
  }
}

}  // namespace shardwire::wire
