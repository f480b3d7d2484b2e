// SPDX-License-Identifier: Apache-2.0
#include "wire/exchange_note.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "schema/exchange.capnp.h"
#include "wire/capnp_input.hpp"
#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/keys.hpp"

namespace shardwire::wire {

namespace {

using Reader = schema::ExchangeNote::Reader;

ExchangeWrite read_write(schema::ExchangeNote::Write::Reader from, std::size_t parts, std::size_t& left, Input& in) {
  ExchangeWrite write{from.getPart(), from.getBytes(), {}};
  if (write.part >= parts) in.reject(fmt::format("names part {}", write.part));
  // Lists may share memory in a hostile message: their lengths are drawn from one budget.
  const auto destroys = in.numbers(from.getDestroys(), left);
  left -= destroys.size();
  write.destroys.reserve(destroys.size());
  for (const std::uint32_t part : destroys) {
    if (part >= parts) in.reject(fmt::format("names part {}", part));
    write.destroys.push_back(part);
  }
  return write;
}

// Checks the values that planning rounds divides by.
void check_request(const ExchangeRequest& request, const Input& in) {
  if (request.item_bytes == 0 || request.run_bytes == 0 || request.run_bytes % request.item_bytes != 0 ||
      request.bytes % request.run_bytes != 0) {
    in.reject(fmt::format("wants {} bytes in runs of {} of elements of {}", request.bytes, request.run_bytes,
                          request.item_bytes));
  }
}

}  // namespace

Bytes encode_exchange_note(const ExchangeNote& note) {
  for (const ExchangePart& part : note.parts) check_key(part.key);
  return encode_framed<schema::ExchangeNote>("note of an exchange", [&](schema::ExchangeNote::Builder out) {
    if (note.failure) {
      out.setFailed(true);
      out.setCode(to_wire<schema::ErrorCode>(wire_errors, note.failure->code));
      const std::size_t size = std::min(note.failure->message.size(), max_failure_bytes);
      out.setMessage(text_of(note.failure->message.substr(0, size)));
    }
    out.setNumber(note.number);
    out.setHeldRank(note.held_rank);
    out.setStagingBytes(note.staging_bytes);
    auto parts = out.initParts(static_cast<unsigned>(note.parts.size()));
    for (unsigned i = 0; i < parts.size(); ++i) {
      parts[i].setFqn(text_of(note.parts[i].key.fqn));
      parts[i].setState(text_of(note.parts[i].key.state));
      parts[i].setIndex(note.parts[i].index);
      parts[i].setCount(note.parts[i].count);
    }
    auto writes = out.initWrites(static_cast<unsigned>(note.writes.size()));
    for (unsigned i = 0; i < writes.size(); ++i) {
      const ExchangeWrite& write = note.writes[i];
      writes[i].setPart(write.part);
      writes[i].setBytes(write.bytes);
      fill(writes[i].initDestroys(static_cast<unsigned>(write.destroys.size())), write.destroys);
    }
    auto collectives = out.initCollectives(static_cast<unsigned>(note.collectives.size()));
    for (unsigned i = 0; i < collectives.size(); ++i) collectives.set(i, text_of(note.collectives[i]));
    out.setForced(note.forced);
    out.setUnasked(note.unasked);
    out.setAdopts(note.adopts);
    out.setDevice(note.device);
    out.setKeptGroup(data_of(note.kept_group));
    out.setKeptSize(note.kept_size);
    out.setIndirect(note.indirect);
    out.setGroupId(data_of(note.group_id));
    out.setSteps(note.steps);
    auto requests = out.initRequests(static_cast<unsigned>(note.requests.size()));
    for (unsigned i = 0; i < requests.size(); ++i) {
      requests[i].setSource(note.requests[i].source);
      requests[i].setTensor(note.requests[i].tensor);
      requests[i].setBytes(note.requests[i].bytes);
      requests[i].setRunBytes(note.requests[i].run_bytes);
      requests[i].setItemBytes(note.requests[i].item_bytes);
    }
    write_boxes(out.initRequestBoxes(), note.requests.size(),
                [&](std::size_t i) -> const Box& { return note.requests[i].box; });
    auto aliases = out.initAliases(static_cast<unsigned>(note.aliases.size()));
    for (unsigned i = 0; i < aliases.size(); ++i) {
      aliases[i].setAlias(text_of(note.aliases[i].alias));
      aliases[i].setFqn(text_of(note.aliases[i].fqn));
    }
  });
}

ExchangeNote decode_exchange_note(std::span<const std::byte> bytes) {
  return read_framed<schema::ExchangeNote>("ExchangeNote", bytes, [](Reader from, Input& in) {
    ExchangeNote note;
    if (from.getFailed()) {
      const auto code = static_cast<std::size_t>(from.getCode());
      if (code >= wire_errors.size()) in.at("ExchangeNote.code").reject(fmt::format("is {}, an unknown code", code));
      note.failure = {wire_errors[code], in.at("ExchangeNote.message").name(from.getMessage(), max_failure_bytes)};
    }
    note.number = from.getNumber();
    if (note.number > max_exchange_number) in.at("ExchangeNote.number").reject(fmt::format("is {}", note.number));
    note.held_rank = from.getHeldRank();
    if (note.held_rank != -1) (void)in.at("ExchangeNote.heldRank").rank(note.held_rank);
    for (const auto part : in.at("ExchangeNote.parts").list(from.getParts())) {
      in.at("ExchangeNote.parts", note.parts.size());
      TensorKey key{in.name(part.getFqn(), max_fqn_bytes), in.name(part.getState(), max_name_bytes)};
      if (part.getIndex() >= part.getCount()) {
        in.reject(fmt::format("is slice {} of {}", part.getIndex(), part.getCount()));
      }
      note.parts.push_back({std::move(key), part.getIndex(), part.getCount()});
    }
    std::size_t left = 8 * in.words().size();
    for (const auto write : in.at("ExchangeNote.writes").list(from.getWrites())) {
      in.at("ExchangeNote.writes", note.writes.size());
      note.writes.push_back(read_write(write, note.parts.size(), left, in));
    }
    for (const auto alias : in.at("ExchangeNote.aliases").list(from.getAliases())) {
      in.at("ExchangeNote.aliases", note.aliases.size());
      note.aliases.push_back({in.name(alias.getAlias(), max_fqn_bytes), in.name(alias.getFqn(), max_fqn_bytes)});
    }
    note.staging_bytes = from.getStagingBytes();
    for (const auto name : in.at("ExchangeNote.collectives").list(from.getCollectives())) {
      note.collectives.push_back(in.name(name, max_name_bytes));
    }
    note.forced = from.getForced();
    note.unasked = from.getUnasked();
    note.adopts = from.getAdopts();
    note.device = from.getDevice();
    if (note.device < -1) in.at("ExchangeNote.device").reject(fmt::format("is {}", note.device));
    note.kept_group = in.at("ExchangeNote.keptGroup").data(from.getKeptGroup(), max_name_bytes);
    note.kept_size = from.getKeptSize();
    note.indirect = from.getIndirect();
    note.group_id = in.at("ExchangeNote.groupId").data(from.getGroupId(), max_name_bytes);
    note.steps = from.getSteps();
    std::vector<Box> boxes = in.at("ExchangeNote.requestBoxes").boxes(from.getRequestBoxes());
    const auto requests = in.at("ExchangeNote.requests").list(from.getRequests());
    if (boxes.size() != requests.size()) in.reject(fmt::format("has {} boxes", boxes.size()));
    for (const auto request : requests) {
      in.at("ExchangeNote.requests", note.requests.size());
      note.requests.push_back({request.getSource(), request.getTensor(), std::move(boxes[note.requests.size()]),
                               request.getBytes(), request.getRunBytes(), request.getItemBytes()});
      check_request(note.requests.back(), in);
    }
    return note;
  });
}

}  // namespace shardwire::wire
