#include "program/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace edge_infer {
namespace {

template <class T>
using Ints = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints32 = Ints<int32_t>;
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// A program together with the arrays its weights point into.
struct PyProgram {
  PyProgram(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvCache> kv, const std::string& isa,
            ProgramLimits limits, bool batch_invariant)
      : program(std::move(pool), std::move(kv), parse_isa(isa), limits, batch_invariant) {}
  Program program;
  std::vector<AnyArray> arrays;
  std::vector<Floats> tables;
};

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

// Checks that an array holds exactly what the shape of a weight needs.
void require_bytes(const char* name, const AnyArray& a, int64_t bytes) {
  require(static_cast<int64_t>(a.nbytes()) == bytes,
          std::string("weight: ") + name + " has " + std::to_string(a.nbytes()) +
              " bytes, expected " + std::to_string(bytes));
}

int64_t dense_bytes(WeightFormat f) { return f == WeightFormat::kF32 ? 4 : 2; }

int64_t add_weight(PyProgram& p, WeightFormat format, GroupForm form, ScaleType scale_type,
                   int64_t n, int64_t k, int64_t group, AnyArray data,
                   std::optional<AnyArray> scales, std::optional<AnyArray> offsets) {
  require(n >= 1 && k >= 1 && n < (int64_t{1} << 31) && k <= (1 << 20), "weight: bad shape");
  const bool quantized = format == WeightFormat::kInt4 || format == WeightFormat::kInt8;
  LinearWeight w{format, form, scale_type, n, k, group, data.data(), nullptr, nullptr};
  if (quantized) {
    require(group >= 32 && k % group == 0, "weight: K is not a multiple of the group");
    const int64_t padded = (n + 15) / 16 * 16;
    require_bytes("data", data, format == WeightFormat::kInt4 ? padded * k / 2 : padded * k);
    require(scales.has_value(), "weight: no scales");
    require_bytes("scales", *scales, padded * (k / group) * 2);
    w.scales = static_cast<const uint16_t*>(scales->data());
    if (form != GroupForm::kSymmetric) {
      require(offsets.has_value(), "weight: no offsets");
      require_bytes("offsets", *offsets,
                    padded * (k / group) * (form == GroupForm::kMinimum ? 2 : 1));
      w.offsets = offsets->data();
    }
  } else {
    require_bytes("data", data, n * k * dense_bytes(format));
  }
  const int64_t id = p.program.add_weight(w);
  p.arrays.push_back(std::move(data));
  if (scales) p.arrays.push_back(std::move(*scales));
  if (offsets) p.arrays.push_back(std::move(*offsets));
  return id;
}

int64_t add_rope(PyProgram& p, Floats cos, Floats sin) {
  require(cos.ndim() == 2 && sin.ndim() == 2 && cos.shape(0) == sin.shape(0) &&
              cos.shape(1) == sin.shape(1),
          "rope: cos and sin must be [positions, rotary_dim / 2], both the same");
  const RopeTable table{static_cast<int64_t>(cos.shape(0)), 2 * static_cast<int64_t>(cos.shape(1)),
                        cos.data(), sin.data()};
  const int64_t id = p.program.add_rope(table);
  p.tables.push_back(std::move(cos));
  p.tables.push_back(std::move(sin));
  return id;
}

using BlockTables = nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<nb::numpy, const float, nb::ndim<2>>;

StepInput step_input(const Ints32& tokens, const Ints32& positions, const Ints32& query_start,
                     const BlockTables& block_tables, const Ints32& logits_rows) {
  require(positions.shape(0) == tokens.shape(0), "step: tokens and positions differ in length");
  require(query_start.shape(0) >= 2, "step: query_start needs at least two entries");
  require(block_tables.shape(0) + 1 == query_start.shape(0),
          "step: block_tables needs a table per sequence and KV group");
  StepInput in{};
  in.tokens = tokens.data();
  in.positions = positions.data();
  in.num_tokens = static_cast<int64_t>(tokens.shape(0));
  in.query_start = query_start.data();
  in.num_sequences = static_cast<int64_t>(query_start.shape(0)) - 1;
  in.block_tables = block_tables.data();
  in.num_groups = static_cast<int64_t>(block_tables.shape(1));
  in.block_table_width = static_cast<int64_t>(block_tables.shape(2));
  in.logits_rows = logits_rows.data();
  in.num_logits = static_cast<int64_t>(logits_rows.shape(0));
  return in;
}

// `rows` rows of the program's memory, which `self` keeps alive.
FloatRows float_rows(nb::handle self, const float* data, int64_t rows, int64_t columns,
                     int64_t width) {
  const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(columns)};
  const int64_t strides[2] = {width, 1};
  return {data, 2, shape, self, strides};
}

FloatRows step(nb::handle_t<PyProgram> self, Ints32 tokens, Ints32 positions, Ints32 query_start,
               BlockTables block_tables, Ints32 logits_rows) {
  Program& program = nb::cast<PyProgram&>(self).program;
  const StepInput in = step_input(tokens, positions, query_start, block_tables, logits_rows);
  const float* logits;
  {
    nb::gil_scoped_release release;
    logits = program.step(in);
  }
  return float_rows(self, logits, in.num_logits, program.limits().vocab_size,
                    program.logits_width());
}

FloatRows hidden_step(nb::handle_t<PyProgram> self, Ints32 tokens, Ints32 positions,
                      Ints32 query_start, BlockTables block_tables, Ints32 rows) {
  Program& program = nb::cast<PyProgram&>(self).program;
  const StepInput in = step_input(tokens, positions, query_start, block_tables, rows);
  const float* hidden;
  {
    nb::gil_scoped_release release;
    hidden = program.hidden_step(in);
  }
  return float_rows(self, hidden, in.num_logits, program.hidden_size(), program.hidden_width());
}

void bind_enums(nb::module_& m) {
  nb::enum_<WeightFormat>(m, "WeightFormat")
      .value("int4", WeightFormat::kInt4)
      .value("int8", WeightFormat::kInt8)
      .value("bf16", WeightFormat::kBF16)
      .value("f16", WeightFormat::kF16)
      .value("f32", WeightFormat::kF32);
  nb::enum_<GroupForm>(m, "GroupForm")
      .value("symmetric", GroupForm::kSymmetric)
      .value("zero", GroupForm::kZeroPoint)
      .value("min", GroupForm::kMinimum);
  nb::enum_<ScaleType>(m, "ScaleType")
      .value("f16", ScaleType::kF16)
      .value("bf16", ScaleType::kBF16);
  nb::enum_<ActivationType>(m, "ActivationType")
      .value("int8", ActivationType::kInt8)
      .value("bf16", ActivationType::kBF16)
      .value("f32", ActivationType::kF32);
  nb::enum_<KvType>(m, "KvType")
      .value("f32", KvType::kF32)
      .value("f16", KvType::kF16)
      .value("bf16", KvType::kBF16)
      .value("int8", KvType::kInt8);
  nb::enum_<Rows>(m, "Rows").value("tokens", Rows::kTokens).value("logits", Rows::kLogits);
  nb::enum_<Epilogue>(m, "Epilogue")
      .value("store", Epilogue::kStore)
      .value("add", Epilogue::kAdd)
      .value("gate", Epilogue::kGate);
  nb::enum_<GateFunction>(m, "GateFunction")
      .value("silu", GateFunction::kSilu)
      .value("gelu", GateFunction::kGeluErf)
      .value("gelu_tanh", GateFunction::kGeluTanh);
}

void bind_ops(nb::module_& m) {
  nb::class_<Buffer>(m, "Buffer").def(nb::init<int64_t, int64_t>(), "offset"_a, "width"_a);
  nb::class_<Prepared>(m, "Prepared")
      .def(nb::init<ActivationType, int64_t, int64_t, int64_t>(), "type"_a, "group"_a, "offset"_a,
           "private_offset"_a);
  nb::class_<LinearPart>(m, "LinearPart")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t>(), "weight"_a, "bias"_a, "column"_a,
           "input"_a);
  nb::class_<EmbedOp>(m, "EmbedOp")
      .def(nb::init<int64_t, Buffer, float>(), "weight"_a, "out"_a, "scale"_a);
  nb::class_<PrepareOp>(m, "PrepareOp")
      .def(nb::init<Buffer, Rows, int64_t, int64_t, float, std::vector<Prepared>>(), "in_"_a,
           "rows"_a, "k"_a, "norm"_a, "eps"_a, "outputs"_a);
  nb::class_<LinearOp>(m, "LinearOp")
      .def(nb::init<int64_t, std::vector<LinearPart>, Buffer, Rows, Epilogue, GateFunction>(),
           "prepare"_a, "parts"_a, "out"_a, "rows"_a, "epilogue"_a, "gate"_a);
  nb::class_<RopeKvOp>(m, "RopeKvOp")
      .def(nb::init<Buffer, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float,
                    int64_t>(),
           "qkv"_a, "layer"_a, "num_heads"_a, "q_column"_a, "k_column"_a, "v_column"_a, "q_norm"_a,
           "k_norm"_a, "eps"_a, "rope"_a);
  nb::class_<AttentionOp>(m, "AttentionOp")
      .def(nb::init<Buffer, Buffer, int64_t, int64_t, int64_t, int64_t, float, int64_t>(), "qkv"_a,
           "out"_a, "layer"_a, "num_heads"_a, "q_column"_a, "window"_a, "scale"_a, "gate_column"_a);
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_enums(m);
  bind_ops(m);

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int, std::vector<int>>(), "threads"_a, "cpus"_a,
           "Start `threads` threads (the caller of a step counts as one), pinned to `cpus`.")
      .def_prop_ro("threads", &ThreadPool::size)
      .def_prop_ro("cpus", &ThreadPool::cpus);

  const auto shapes = [](const std::vector<std::pair<int64_t, int64_t>>& layers) {
    std::vector<KvLayerShape> s;
    for (const auto& [heads, dim] : layers) s.push_back({heads, dim});
    return s;
  };
  nb::class_<KvGroup>(m, "KvGroup")
      .def(nb::init<int64_t, int64_t, std::vector<int64_t>>(), "window"_a, "num_blocks"_a,
           "layers"_a, "Layers that share block tables; a token sees `window` positions, 0 all.");
  nb::class_<KvCache>(m, "KvCache")
      .def(
          "__init__",
          [shapes](KvCache* self, const std::vector<std::pair<int64_t, int64_t>>& layers,
                   std::vector<KvGroup> groups, int64_t block_size, KvType type) {
            new (self) KvCache(shapes(layers), std::move(groups), block_size, type);
          },
          "layers"_a, "groups"_a, "block_size"_a, "type"_a,
          "Map a paged cache; layers are (num_key_value_heads, head_dim).")
      .def_static(
          "block_bytes",
          [shapes](const std::vector<std::pair<int64_t, int64_t>>& layers, int64_t block_size,
                   KvType type) { return KvCache::block_bytes(shapes(layers), block_size, type); },
          "layers"_a, "block_size"_a, "type"_a, "Bytes of one block over these layers.")
      .def_prop_ro("block_size", &KvCache::block_size)
      .def_prop_ro("nbytes", &KvCache::bytes)
      .def_prop_ro("address",
                   [](const KvCache& kv) { return reinterpret_cast<uintptr_t>(kv.data()); });

  nb::class_<PyProgram>(m, "Program")
      .def(
          "__init__",
          [](PyProgram* self, std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvCache> kv,
             const std::string& isa, int64_t max_tokens, int64_t max_sequences, int64_t max_logits,
             int64_t max_positions, int64_t vocab_size, bool batch_invariant) {
            new (self) PyProgram(
                std::move(pool), std::move(kv), isa,
                ProgramLimits{max_tokens, max_sequences, max_logits, max_positions, vocab_size},
                batch_invariant);
          },
          "pool"_a, "kv"_a, "isa"_a, "max_tokens"_a, "max_sequences"_a, "max_logits"_a,
          "max_positions"_a, "vocab_size"_a, "batch_invariant"_a = false,
          "batch_invariant: a token's logits have the same bits whatever else a step computes.")
      .def("add_weight", &add_weight, "format"_a, "form"_a, "scale_type"_a, "n"_a, "k"_a, "group"_a,
           "data"_a, "scales"_a.none(), "offsets"_a.none(),
           "Register a linear's arrays (kept alive, not copied); returns its id.")
      .def(
          "add_vector",
          [](PyProgram& p, nb::ndarray<const float, nb::ndim<1>, nb::c_contig> v) {
            return p.program.add_vector(std::vector<float>(v.data(), v.data() + v.shape(0)));
          },
          "values"_a, "Copy a norm weight or bias; returns its id.")
      .def("add_rope", &add_rope, "cos"_a, "sin"_a,
           "Register cos and sin [positions, rotary_dim / 2]; returns the table's id.")
      .def("add_op", [](PyProgram& p, const EmbedOp& op) { return p.program.add_op(op); })
      .def("add_op", [](PyProgram& p, const PrepareOp& op) { return p.program.add_op(op); })
      .def("add_op", [](PyProgram& p, const LinearOp& op) { return p.program.add_op(op); })
      .def("add_op", [](PyProgram& p, const RopeKvOp& op) { return p.program.add_op(op); })
      .def("add_op", [](PyProgram& p, const AttentionOp& op) { return p.program.add_op(op); })
      .def(
          "finish",
          [](PyProgram& p, int64_t arena_bytes, int64_t private_bytes, Buffer logits,
             int64_t hidden_op, int64_t hidden_output) {
            p.program.finish(arena_bytes, private_bytes, logits, hidden_op, hidden_output);
          },
          "arena_bytes"_a, "private_bytes"_a, "logits"_a, "hidden_op"_a, "hidden_output"_a)
      .def_static("prepared_bytes", &Program::prepared_bytes, "type"_a, "k"_a, "group"_a,
                  "tokens"_a, "Bytes that a prepared form needs for `tokens` rows.")
      .def("step", &step, "tokens"_a, "positions"_a, "query_start"_a, "block_tables"_a,
           "logits_rows"_a)
      .def("hidden_step", &hidden_step, "tokens"_a, "positions"_a, "query_start"_a,
           "block_tables"_a, "rows"_a,
           "A step without the output head: the head's input, [rows, hidden_size].")
      .def_prop_ro("memory_bytes", [](const PyProgram& p) { return p.program.memory_bytes(); })
      .def(
          "kernel_calls", [](const PyProgram& p) { return p.program.kernel_calls(); },
          "How many ops each kernel has run, as (name, count).");
}

}  // namespace edge_infer
