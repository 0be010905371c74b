#include "bench/cuda/torch_topk.hpp"

#include <stdio.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench/cuda/gpu_timing.hpp"

namespace tamis::bench {
namespace {

// What python3 runs: GpuTimer in Python. A JSON line a case; anything else is an error's text.
constexpr std::string_view kProgram = R"PYTHON(
import json
import math
import sys

import torch

REQUEST = json.loads(sys.argv[1])
LEAST, MOST = REQUEST["least_launches"], REQUEST["most_launches"]
PROBE_REPLAYS = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cycle(copies, launches):
    """Which copies the launches of each graph read."""
    if copies <= launches:
        rounds = max(launches // copies, -(-LEAST // copies))
        return [[i % copies for i in range(rounds * copies)]]
    graphs = min(-(-copies // launches), copies // LEAST)
    return [list(range(g * copies // graphs, (g + 1) * copies // graphs)) for g in range(graphs)]


def capture(work, copies, pool):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool)
    for copy in copies:
        work(copy)
    graph.capture_end()
    return graph, len(copies)


def replay_us(replays):
    """Replays one graph after the other; microseconds a launch in each."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(replays) + 1)]
    marks[0].record()
    for (graph, _), mark in zip(replays, marks[1:]):
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return [1000 * a.elapsed_time(b) / count for a, b, (_, count) in zip(marks, marks[1:], replays)]


def samples_us(work, copies):
    pool = torch.cuda.graph_pool_handle()
    probe = capture(work, [i % copies for i in range(LEAST)], pool)
    spent = 0
    while spent < REQUEST["warm_up_us"]:
        each = replay_us([probe] * PROBE_REPLAYS)
        spent += sum(each) * LEAST
    launches = min(max(math.ceil(REQUEST["replay_us"] / min(each)), LEAST), MOST)
    graphs = [capture(work, order, pool) for order in cycle(copies, launches)]
    replays = [graphs[i % len(graphs)] for i in range(len(graphs) + REQUEST["repeats"])]
    return replay_us(replays)[len(graphs):]


def check(scores, k):
    """The first and the last row: the values at the positions are the k largest."""
    indices = torch.topk(scores, k, dim=-1, sorted=False).indices
    for row in (0, -1):
        got = scores[row][indices[row]].sort().values
        if not torch.equal(got, scores[row].sort().values[-k:]):
            raise SystemExit(f"torch.topk of {tuple(scores.shape)} does not select the {k} largest")


def measure(rows, width, k, dtype, copies):
    scores = torch.randn(copies, rows, width, device="cuda").to(DTYPES[dtype])
    check(scores[0], k)
    work = lambda copy: torch.topk(scores[copy], k, dim=-1, sorted=False)
    hot = lambda copy: work(0)
    return {"us": samples_us(work, copies), "hot_us": samples_us(hot, 1), "torch": torch.__version__}


def main():
    if not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no GPU")
    torch.manual_seed(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        for index, case in enumerate(REQUEST["cases"]):
            print(json.dumps({"case": index, **measure(**case)}), flush=True)
            torch.cuda.empty_cache()


main()
)PYTHON";

// Closes what popen() opened.
struct PipeClose {
  void operator()(FILE* pipe) const { pclose(pipe); }
};

// The program goes in as standard input, so no file is left behind.
std::string command_of(const nlohmann::json& request) {
  constexpr std::string_view kEnd = "TAMIS_PROGRAM_ENDS";
  // Numbers and our own names only: nothing in it that a shell would take for the end of the quotes.
  std::string command = "python3 - '" + request.dump() + "' 2>&1 <<'";
  return command.append(kEnd).append("'").append(kProgram).append(kEnd).append("\n");
}

nlohmann::json request_of(const std::vector<TorchCase>& cases, int repeats) {
  nlohmann::json list = nlohmann::json::array();
  for (const TorchCase& c : cases) {
    list.push_back(
        {{"rows", c.rows}, {"width", c.width}, {"k", c.k}, {"dtype", dtype_name(c.dtype)}, {"copies", c.copies}});
  }
  return {{"repeats", repeats},
          {"replay_us", kReplayUs},
          {"warm_up_us", kGpuWarmUpUs},
          {"least_launches", kLeastLaunches},
          {"most_launches", kMostLaunches},
          {"cases", list}};
}

// Takes lines off the front of `text`; what is left is not yet a whole line.
template <typename F>
void take_lines(std::string& text, F take) {
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    take(text.substr(0, end));
    text.erase(0, end + 1);
  }
}

}  // namespace

std::string time_torch_topk(const std::vector<TorchCase>& cases, int repeats,
                            const std::function<void(std::size_t index, const TorchTiming& timing)>& result) {
  std::unique_ptr<FILE, PipeClose> pipe(popen(command_of(request_of(cases, repeats)).c_str(), "r"));
  if (pipe == nullptr) return "no process can be started";
  std::size_t num_results = 0;
  std::string text, last_words;
  const auto take = [&](const std::string& line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) {
      if (!line.empty()) last_words = line;
      return;
    }
    result(json.at("case"), {summarise(json.at("us")), summarise(json.at("hot_us")), json.at("torch")});
    ++num_results;
  };
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    text += buffer.data();
    take_lines(text, take);
  }
  const int status = pclose(pipe.release());
  if (status == 0 && num_results == cases.size()) return {};
  return last_words.empty() ? "python3 ended early" : last_words;
}

}  // namespace tamis::bench
