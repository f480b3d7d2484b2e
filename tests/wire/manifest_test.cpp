// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(manifest)

using namespace samples;

namespace {

TensorLayout tensor(std::string fqn, Extents shape, Layout layout, DType dtype = DType::f32) {
  return {{{std::move(fqn), "exp_avg"}, dtype, shape}, std::move(layout)};
}

void check_refused(const Manifest& manifest) {
  BOOST_CHECK_EXCEPTION((void)decode_manifest(encode_manifest(manifest)), Error, [](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::transport_failed && std::string(error.what()).find("Manifest.") < 64;
  });
}

/// Names and shapes of a model of 32 layers with grouped key and value heads, three states each.
Manifest large_model() {
  Manifest manifest{32, {}};
  const auto add = [&](const std::string& fqn, const Extents& shape) {
    for (const char* state : {"master", "exp_avg", "exp_avg_sq"}) {
      // Each tensor has its own layout object, as separate declarations produce.
      const Layout layout = shape.size() == 1 ? Layout::replicated() : Layout::mesh({8, 4}, {Shard{0}, Replicate{}});
      manifest.tensors.push_back({{{fqn, state}, DType::f32, shape}, layout});
    }
  };
  add("model.embed_tokens.weight", {128256, 4096});
  for (int layer = 0; layer < 32; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add(prefix + "self_attn.q_proj.weight", {4096, 4096});
    add(prefix + "self_attn.k_proj.weight", {1024, 4096});
    add(prefix + "self_attn.v_proj.weight", {1024, 4096});
    add(prefix + "self_attn.o_proj.weight", {4096, 4096});
    add(prefix + "mlp.gate_proj.weight", {14336, 4096});
    add(prefix + "mlp.up_proj.weight", {14336, 4096});
    add(prefix + "mlp.down_proj.weight", {4096, 14336});
    add(prefix + "input_layernorm.weight", {4096});
    add(prefix + "post_attention_layernorm.weight", {4096});
  }
  add("model.norm.weight", {4096});
  add("lm_head.weight", {128256, 4096});
  return manifest;
}

}  // namespace

BOOST_AUTO_TEST_CASE(manifests_survive_a_round_trip_and_are_canonical) {
  Maker maker(test_seed());
  for (int round = 0; round < 100; ++round) {
    const Manifest original = maker.manifest(maker.below(30));
    const Bytes bytes = encode_manifest(original);
    BOOST_CHECK_EQUAL(bytes.size() % 8, 0u);
    const Manifest decoded = decode_manifest(bytes);
    BOOST_CHECK(decoded == original);
    BOOST_CHECK(encode_manifest(decoded) == bytes);
  }
}

BOOST_AUTO_TEST_CASE(every_type_of_elements_travels) {
  Manifest manifest{1, {}};
  for (const char* name :
       {"f64",       "f32",        "f16",        "bf16",   "f8e4m3",  "f8e5m2",   "i64",        "i32",
        "i16",       "i8",         "u8",         "bool",   "u64",     "u32",      "u16",        "complex128",
        "complex64", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0", "opaque1", "opaque24", "opaque65535"}) {
    manifest.tensors.push_back(tensor(name, {4}, Layout::replicated(), parse_dtype(name).value()));
  }
  BOOST_CHECK(decode_manifest(encode_manifest(manifest)) == manifest);
}

BOOST_AUTO_TEST_CASE(numbers_that_are_no_type_are_refused_on_both_sides) {
  const auto with = [](DType dtype) { return encode_manifest({1, {tensor("a", {4}, Layout::replicated(), dtype)}}); };
  for (const std::uint32_t number : {20U, 0xffffU, 0x10000U, 0x20000U})
    BOOST_CHECK_THROW((void)with(DType{number}), Error);
  Bytes bytes = with(opaque(max_item_bytes));
  const Bytes number{std::byte{0xff}, std::byte{0xff}, std::byte{0x07}};  // 0x1ffff as a number of variable length
  const auto at = std::search(bytes.begin(), bytes.end(), number.begin(), number.end());
  BOOST_REQUIRE(at != bytes.end());
  at[2] = std::byte{0x0f};
  BOOST_CHECK_EXCEPTION((void)decode_manifest(bytes), Error, [](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::transport_failed &&
           std::string(error.what()).find("is 262143, an unknown element type") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(an_empty_manifest_survives_a_round_trip) {
  BOOST_CHECK(decode_manifest(encode_manifest({})) == Manifest{});
}

BOOST_AUTO_TEST_CASE(order_and_content_change_the_bytes) {
  Manifest one{2, {tensor("a", {4}, Layout::chunk(0, 2)), tensor("b", {4}, Layout::chunk(0, 2))}};
  Manifest other = one;
  std::swap(other.tensors[0], other.tensors[1]);
  BOOST_CHECK(encode_manifest(one) != encode_manifest(other));
  other = one;
  other.tensors[1].layout = Layout::replicated();
  BOOST_CHECK(encode_manifest(one) != encode_manifest(other));
}

BOOST_AUTO_TEST_CASE(the_manifest_of_a_large_model_is_small) {
  const Manifest manifest = large_model();
  BOOST_REQUIRE_EQUAL(manifest.tensors.size(), 873u);
  const Bytes bytes = encode_manifest(manifest);
  BOOST_TEST_MESSAGE("bytes of the manifest: " << bytes.size());
  BOOST_CHECK_LT(bytes.size(), 9'000u);
  BOOST_CHECK(decode_manifest(bytes) == manifest);
}

BOOST_AUTO_TEST_CASE(state_after_state_is_small_as_well) {
  Manifest manifest = large_model();
  std::ranges::stable_sort(manifest.tensors, {}, [](const auto& tensor) { return tensor.spec.key.state; });
  const Bytes bytes = encode_manifest(manifest);
  BOOST_TEST_MESSAGE("bytes of the manifest: " << bytes.size());
  BOOST_CHECK_LT(bytes.size(), 12'000u);
  BOOST_CHECK(decode_manifest(bytes) == manifest);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_refused) {
  const Layout whole = Layout::replicated();
  check_refused({2, {tensor("a", {4}, whole), tensor("a", {4}, whole)}});            // repeated key
  check_refused({2, {tensor("a", {4}, Layout::chunk(1, 2))}});                       // no such dim
  check_refused({2, {tensor("a", {8}, Layout::mesh({4}, {Shard{0}}))}});             // rank 3 of 2
  check_refused({2, {tensor("a", {4}, Layout::boxes({{Rank{0}, {{{2}, {3}}}}}))}});  // past the end
  check_refused({-1, {}});
  check_refused({(1 << 24) + 1, {}});
  check_refused({2, {tensor("a", {-4}, whole)}});
  check_refused({2, {tensor("a", {Extent{1} << 32, Extent{1} << 32}, whole)}});  // volume
  check_refused({2, {tensor("a", {Extent{1} << 62}, whole)}});                   // bytes
  check_refused({2, {tensor("a", {Extent{1} << 50}, whole, opaque(max_item_bytes))}});
}

BOOST_AUTO_TEST_CASE(keys_that_no_peer_would_take_are_refused_when_encoding) {
  const auto encodes = [](const std::string& fqn) {
    (void)encode_manifest({1, {tensor(fqn, {4}, Layout::replicated())}});
  };
  encodes(std::string(4096, 'f'));
  BOOST_CHECK_THROW(encodes(std::string(4097, 'f')), Error);
  BOOST_CHECK_THROW(encodes(std::string("a\0b", 3)), Error);
}

BOOST_AUTO_TEST_CASE(aliases_travel_and_change_the_bytes) {
  Manifest plain{2, {tensor("embed", {4}, Layout::replicated())}};
  Manifest tied = plain;
  tied.aliases = {{"head", "embed"}, {"top", "embed"}};
  BOOST_CHECK(decode_manifest(encode_manifest(tied)) == tied);
  BOOST_CHECK(encode_manifest(tied) != encode_manifest(plain));
  BOOST_CHECK(decode_manifest(encode_manifest({1, {}, {{"a", "b"}}})) == (Manifest{1, {}, {{"a", "b"}}}));
}

BOOST_AUTO_TEST_CASE(aliases_that_say_nothing_clear_are_refused_on_both_sides) {
  const std::vector<TensorLayout> tensors{tensor("bbbb", {4}, Layout::replicated())};
  const auto refused = [&](std::vector<Alias> aliases, const std::string& part) {
    BOOST_CHECK_EXCEPTION((void)encode_manifest({2, tensors, std::move(aliases)}), Error, [&](const Error& error) {
      BOOST_TEST_INFO(error.what());
      return error.code() == ErrorCode::invalid_argument && std::string(error.what()).find(part) != std::string::npos;
    });
  };
  refused({{"a", "a"}}, "another alias");
  refused({{"a", "b"}, {"b", "c"}}, "another alias");
  refused({{"b", "x"}, {"a", "x"}}, "out of order or repeated");
  refused({{"a", "x"}, {"a", "y"}}, "out of order or repeated");
  refused({{"", "x"}}, "lacks a name");
  refused({{"a", ""}}, "lacks a name");
  refused({{std::string(5000, 'a'), "x"}}, "too long");

  // The same from a peer: one name is replaced by another of the same length in the bytes of a valid manifest.
  const Bytes good = encode_manifest({2, {tensors[0]}, {{"aaaa", "cccc"}, {"dddd", "cccc"}}});
  const auto with = [&](const std::string& name, const std::string& other) {
    Bytes bytes = good;
    auto at = std::search(bytes.begin(), bytes.end(), std::as_bytes(std::span(name)).begin(),
                          std::as_bytes(std::span(name)).end());
    BOOST_REQUIRE(at != bytes.end());
    std::ranges::copy(std::as_bytes(std::span(other)), at);
    return bytes;
  };
  const auto refused_by_peers = [](const Bytes& bytes) {
    BOOST_CHECK_EXCEPTION((void)decode_manifest(bytes), Error, [](const Error& error) {
      BOOST_TEST_INFO(error.what());
      return error.code() == ErrorCode::transport_failed &&
             std::string(error.what()).find("Manifest.aliases") != std::string::npos;
    });
  };
  BOOST_CHECK((decode_manifest(with("aaaa", "abab")).aliases[0] == Alias{"abab", "cccc"}));
  refused_by_peers(with("aaaa", "dddd"));  // twice
  refused_by_peers(with("aaaa", "eeee"));  // out of order
  refused_by_peers(with("cccc", "aaaa"));  // of itself
  refused_by_peers(with("cccc", "dddd"));  // of an alias
}

BOOST_AUTO_TEST_CASE(a_tensor_under_two_names_of_one_parameter_is_refused) {
  const Manifest manifest{
      2, {tensor("embed", {4}, Layout::replicated()), tensor("head", {4}, Layout::replicated())}, {{"head", "embed"}}};
  BOOST_CHECK_EXCEPTION((void)encode_manifest(manifest), Error, [](const Error& error) {
    return std::string(error.what()).find("head:exp_avg stands under two names") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(few_names_cannot_become_many_bytes) {
  // 100 long names times 100 states: 10,000 tensors would decode to 40 MB of names, from 600 KB.
  Manifest manifest{1, {}};
  for (int name = 0; name < 100; ++name) {
    for (int state = 0; state < 100; ++state) {
      TensorKey key{fmt::format("{:04}", name), fmt::format("{}", state)};
      manifest.tensors.push_back({{std::move(key), DType::u8, {4}}, Layout::replicated()});
    }
  }
  BOOST_CHECK(decode_manifest(encode_manifest(manifest)) == manifest);
  for (TensorLayout& entry : manifest.tensors) entry.spec.key.fqn.append(4000, 'x');
  check_refused(manifest);
}

BOOST_AUTO_TEST_CASE(layouts_inside_layouts_have_a_bounded_depth) {
  Layout layout = Layout::chunk(0, 2);
  for (int depth = 2; depth <= 8; ++depth) layout = Layout::on_ranks(layout, Rank{0}, 2);
  const Manifest deep{2, {tensor("a", {4}, layout)}};
  BOOST_CHECK(decode_manifest(encode_manifest(deep)) == deep);
  check_refused({2, {tensor("a", {4}, Layout::on_ranks(layout, Rank{0}, 2))}});
  for (int depth = 9; depth <= 2000; ++depth) layout = Layout::on_ranks(layout, Rank{0}, 2);
  check_refused({2, {tensor("a", {4}, layout)}});
}

BOOST_AUTO_TEST_CASE(ranks_have_one_form) {
  const auto on = [](std::vector<Rank> ranks) {
    return encode_manifest({99, {tensor("a", {4}, Layout::on_ranks(Layout::chunk(0, 3), std::move(ranks)))}});
  };
  const Bytes good = on({Rank{93}, Rank{0}, Rank{2}});
  BOOST_CHECK(encode_manifest(decode_manifest(good)) == good);
  // A peer lists ranks that ascend by equal steps.
  Bytes bytes = good;
  const auto first = std::ranges::find(bytes, std::byte{93});
  BOOST_REQUIRE(std::ranges::count(bytes, std::byte{93}) == 1);
  first[0] = std::byte{1};
  first[8] = std::byte{2};
  first[16] = std::byte{3};
  BOOST_CHECK_EXCEPTION((void)decode_manifest(bytes), Error, [](const Error& error) {
    return std::string(error.what()).find("canonical") != std::string::npos;
  });
  first[0] = std::byte{3};  // now a rank stands twice
  BOOST_CHECK_THROW((void)decode_manifest(bytes), Error);
  BOOST_CHECK(on({Rank{4}, Rank{5}, Rank{6}}) ==
              encode_manifest({99, {tensor("a", {4}, Layout::on_ranks(Layout::chunk(0, 3), Rank{4}, 3))}}));
}

BOOST_AUTO_TEST_CASE(few_numbers_cannot_ask_for_much_work) {  // otherwise this would not end
  // 2^24 outer ranks each, and layouts that are checked for each outer rank.
  const int many = 1 << 24;
  const Layout wide = Layout::within(Layout::replicated(), many, Layout::replicated());
  check_refused({many, {tensor("a", {4}, Layout::within(wide, many, wide))}});
  Manifest shapes{many, {}};
  for (Extent n = 2; n < 100; ++n) shapes.tensors.push_back(tensor(fmt::format("t{}", n), {n}, wide));
  check_refused(shapes);
  // 2^32 boxes.
  check_refused({2, {tensor("a", {Extent{1} << 33}, Layout::block_cyclic({1}, {2}))}});
}

BOOST_AUTO_TEST_SUITE_END()
