"""Backends with one fault each, seen in the field: what the suite has to find."""

import math
from dataclasses import replace

import torch
from conformance.plain_backend import Engine, Plain

from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.stops import Stops
from reference_impl.staleness.epochs import EpochRuns

FAULTS: dict[str, type] = {}
"""Name of a fault -> the backend that has it."""


class Faulty(Plain):
    """Not faulty yet; its subclasses are entered under their names."""

    def __init_subclass__(cls) -> None:
        name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        FAULTS[name.lstrip("-")] = cls


# --- sampling ---------------------------------------------------------------------------------------------------


class BestCandidatesLogprob(Faulty):
    """Reports the likeliest token's log-probability, not the sampled one's."""

    def reported(self, logits, token, request):
        return float(self.distribution(logits, request.reported).max())


class TemperatureOnLogprobs(Faulty):
    """Divides log-probabilities by the temperature, where logits are to be divided."""

    def reported(self, logits, token, request):
        temperature, *filters = request.reported
        return float(self.distribution(logits, (1.0 if temperature else 0.0, *filters))[token]) / (temperature or 1.0)


class RawInsteadOfProcessed(Faulty):
    """Reports the model's own log-probabilities, whatever the recipe asks for."""

    def reported(self, logits, token, request):
        return float(logits.log_softmax(-1)[token])


class TopPBeforeTopK(Faulty):
    """Lets top-p count the whole vocabulary, and top-k what it left."""

    def distribution(self, logits, rule):
        temperature, top_k, top_p = rule
        kept = super().distribution(logits, (temperature, 0, top_p))
        return super().distribution(kept, (1.0, top_k, 1.0)) if temperature else kept


class GreedyNan(Faulty):
    """Scales greedy logits by a temperature of 0, which makes their log-probabilities NaN."""

    def reported(self, logits, token, request):
        return math.nan if request.reported[0] == 0.0 else super().reported(logits, token, request)


class HighestOfTies(Faulty):
    """Takes the highest id of equally good ones."""

    def chosen(self, logits, request):
        if request.rule[0]:
            return super().chosen(logits, request)
        return len(logits) - 1 - int(logits.flip(-1).argmax())


class OneStreamForAll(Faulty):
    """Draws all rows from one stream in turn, so that a row depends on its neighbors."""

    def stream_of(self, request):
        return self.config.seed * 1_000_003 + self._engine.sampled_tokens


class SameStreamForEach(Faulty):
    """Seeds every row alike, so that a group of rollouts says the same thing many times."""

    def stream_of(self, request):
        return self.config.seed * 1_000_003 + len(request.token_ids)


# --- stops and lengths ------------------------------------------------------------------------------------------


def without_last(completion):
    """Without its last token; the record is cut as well."""
    record, length = completion.record, completion.record.length - 1
    cut = {name: getattr(record, name).truncate(length) for name in ("policy_epoch", "kv_cache_epoch")}
    cut["oldest_attended_kv_epoch"] = record.oldest_attended_kv_epoch.truncate(length)
    record = replace(record, sampled=((record.sampled[0][0], length),), **cut)
    return replace(completion, token_ids=completion.token_ids[:-1], logprobs=completion.logprobs[:-1], record=record)


class StopTokenDropped(Faulty):
    """Leaves the stop id out of the response."""

    def ended(self, completion, row):
        stopped = completion.token_ids and completion.token_ids[-1] in row.stops.token_ids
        return without_last(completion) if stopped else completion


class OneStopId(Faulty):
    """Heeds the first of several stop ids."""

    def _rows(self, data):
        return [replace(row, stops=Stops(row.stops.token_ids[:1], row.stops.strings)) for row in super()._rows(data)]


class StopStringKeepsLogprobs(Faulty):
    """Takes a stop string's last token away and leaves its log-probability."""

    def ended(self, completion, row):
        text = self.tokenizer.decode(completion.token_ids)
        hit = any(text.endswith(string) for string in row.stops.strings)
        return replace(without_last(completion), logprobs=completion.logprobs) if hit else completion


class TruncatedAtTheLimit(Faulty):
    """Calls truncated whatever is as long as the limit."""

    def ended(self, completion, row):
        return replace(completion, truncated=len(completion.token_ids) == row.limit and completion.error is None)


# --- outputs ----------------------------------------------------------------------------------------------------


class PromptEchoedWrong(Faulty):
    """Returns the prompt as the engine echoes it, with a beginning-of-sequence token of its own over the first."""

    def output(self, output):
        if output["output_ids"].numel():
            output["output_ids"][:, 0] = 2
        return output


class LeftPadded(Faulty):
    """Pads rows on the left."""

    def output(self, output):
        width = output["output_ids"].shape[1]
        for row, length in enumerate(output["unpadded_sequence_lengths"].tolist()):
            for name in ("output_ids", "logprobs"):
                output[name][row] = output[name][row].roll(width - length)
        return output


class LastTokenOverwritten(Faulty):
    """Writes the padding of a short row one place too early."""

    def output(self, output):
        for row, length in enumerate(output["unpadded_sequence_lengths"].tolist()):
            if output["generation_lengths"][row]:
                output["output_ids"][row, length - 1 : length] *= int(length == output["output_ids"].shape[1])
        return output


class StopTakenForPadding(Faulty):
    """Takes a stop token that is the pad token for padding."""

    def output(self, output):
        stops = [0] if self.config.stop_token_ids is None else self.config.stop_token_ids
        for row, length in enumerate(output["unpadded_sequence_lengths"].tolist()):
            if 0 in stops and output["generation_lengths"][row] and output["output_ids"][row, length - 1] == 0:
                output["unpadded_sequence_lengths"][row] -= 1
                output["generation_lengths"][row] -= 1
        return output


class ReadsPadding(Faulty):
    """Generates for the padded row, not for its first tokens."""

    def _rows(self, data):
        rows = super()._rows(data)
        full = data["input_ids"].tolist()
        return [replace(row, prompt=ids) if row.prompt else row for row, ids in zip(rows, full, strict=True)]


class InOrderOfFinish(Faulty):
    """Returns rows in the order in which they finished."""

    def generate(self, data, greedy=False):
        rows = [event[1] for event in self.stream(data, greedy) if not isinstance(event, Progress)]
        if rows and all(row["errors"][0] for row in rows):
            raise GenerationError(f"every request of the batch failed; the first: {rows[0]['errors'][0]}")
        return joined(rows) if rows else super().generate(data, greedy)


def joined(rows: list[BatchedDataDict]) -> BatchedDataDict:
    """One-row outputs below each other."""
    kinds = {"output_ids": torch.int64, "logprobs": torch.float32, "prompt_logprobs": torch.float32}
    columns = {}
    for name in rows[0]:
        values = [row[name][0] for row in rows]
        if name in kinds:
            columns[name] = right_padded([value.tolist() for value in values], 0, kinds[name])
        else:
            columns[name] = torch.stack(values) if isinstance(values[0], torch.Tensor) else values
    return BatchedDataDict(**columns)


class AsyncCountsUp(Faulty):
    """Numbers the rows of `generate_async` as they come."""

    async def generate_async(self, data, greedy=False):
        count = 0
        async for _, output in super().generate_async(data, greedy):
            yield count, output
            count += 1


class FailedRowsHaveText(Faulty):
    """Gives a row that was refused a token."""

    def ended(self, completion, row):
        refused = completion.error and not completion.token_ids
        return replace(completion, token_ids=[3], logprobs=[-1.0]) if refused else completion


# --- life and faults --------------------------------------------------------------------------------------------


class WakesByItself(Faulty):
    """Generates while it should be asleep."""

    def _awake(self):
        self.prepare_for_generation()
        return super()._awake()


class ShutsDownOnce(Faulty):
    """Cannot be shut down a second time."""

    over = False

    def shutdown(self):
        if self.over:
            raise RuntimeError("the engine is gone")
        self.over = True
        return super().shutdown()


class EmptyPromptKills(Faulty):
    """Loses its engine over an empty prompt."""

    def _rows(self, data):
        rows = super()._rows(data)
        if any(not row.prompt for row in rows):
            self.shutdown()
            raise RuntimeError("zero-sized tensor")
        return rows


class OneFailsAll(Faulty):
    """Fails a whole batch for one bad row."""

    def generate(self, data, greedy=False):
        output = super().generate(data, greedy)
        if errors := [error for error in output["errors"] if error]:
            raise GenerationError(f"every request of the batch failed; the first: {errors[0]}")
        return output


# --- updates and stamps -----------------------------------------------------------------------------------------


class UpdateNotApplied(Faulty):
    """Takes new weights, stamps their epoch, and goes on with the old ones."""

    def load(self, state_dict):
        pass


class UpdateAStepLate(Faulty):
    """Stamps an epoch when its message arrives, and loads its weights a step later."""

    def _start(self):
        return LateEngine(self)


class LateEngine(Engine):
    late = None

    def change_weights(self, state_dict, epoch):
        self.late = state_dict if self.running else None
        super().change_weights(None if self.running else state_dict, epoch)

    def step(self):
        done = super().step()
        self.owner.load(self.late)
        self.late = None
        return done


class UpdateDropsRequests(Faulty):
    """Loses the requests under way when weights change."""

    def update_weights(self, state_dict, *, epoch):
        super().update_weights(state_dict, epoch=epoch)
        if self._engine is not None and not self.asleep:
            self.abort()
        return True


class EpochsMayFall(Faulty):
    """Takes weights of an older epoch."""

    def update_weights(self, state_dict, *, epoch):
        super().update_weights(state_dict, epoch=max(epoch, self.epoch))
        self.epoch = epoch
        return True


class MissingWeightsStay(Faulty):
    """Keeps old values where an update has none."""

    def update_weights(self, state_dict, *, epoch):
        old = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        return super().update_weights(None if state_dict is None else {**old, **state_dict}, epoch=epoch)


class RecomputeForgotten(Faulty):
    """Keeps the cache where `recompute` asks for a new one."""

    def _start(self):
        engine = super()._start()
        if engine.mode == "recompute":
            engine.mode = "persist"
        return engine


class PolicyAtNMinusOne(Faulty):
    """Stamps the policy's boundary where the cache's is."""

    def ended(self, completion, row):
        if completion.record is None:
            return completion
        runs = [(max(start - 1, 0), epoch) for start, epoch in completion.record.policy_epoch.runs]
        policy = EpochRuns.from_boundaries(runs, completion.record.length)
        return replace(completion, record=replace(completion.record, policy_epoch=policy))


class KvAtTheMessage(Faulty):
    """Stamps keys and values that are not written yet when an epoch's message arrives."""

    def ended(self, completion, row):
        record = completion.record
        if record is None or not record.sampled:
            return completion
        admitted, first = record.admission_epoch, record.of_sampled("policy_epoch").runs[0][1]
        if admitted == first:
            return completion
        kv = EpochRuns.from_boundaries([(0, admitted), (len(row.prompt) - 1, first)], record.length)
        return replace(completion, record=replace(record, kv_cache_epoch=kv))


class RecordsTooLong(Faulty):
    """Stamps the token after the last, too."""

    def ended(self, completion, row):
        record = completion.record
        if record is None:
            return completion
        longer = {
            name: getattr(record, name).append(record.completion_epoch) for name in ("policy_epoch", "kv_cache_epoch")
        }
        longer["oldest_attended_kv_epoch"] = record.oldest_attended_kv_epoch.append(None)
        return replace(completion, record=replace(record, **longer))
