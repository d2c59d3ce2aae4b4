"""A load as numbers, for ``vmap``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from physim.batching.contexts import Contexts
from physim.batching.guards import SMALL, TINY
from physim.batching.prefix_cache import Prefixes
from physim.batching.strata import PARTS, Strata, moments_of, strata_of, strata_of_missed
from physim.inputs.lengths import STRATA
from physim.inputs.load import Load
from physim.inputs.popularity import Popularity
from physim.inputs.request_points import RequestMoments
from physim.inputs.routed_load import LevelledLoad, RoutedLoad
from physim.pytree import Pytree
from physim.service.draft import Draft
from physim.service.phases import decode_steps
from physim.types import AnyArray, Number, Scalar

# Prefixes of which hardly two requests that run have the same one: each holds its own.
_PRIVATE = round(1 / SMALL)
_ENDS = np.cumsum(PARTS)


class Prompts(Pytree):
    """Prompts that find their prefix and the same that do not, together from short to long.

    Attributes:
        tokens: Tokens that are computed of parts of the requests, with the prefix and without it.
        found: The weight of each of them where all prefixes are found.
        missed: Its weight where none is.
    """

    tokens: Float[AnyArray, " both"]
    found: Float[AnyArray, " both"]
    missed: Float[AnyArray, " both"]

    @classmethod
    def of_parts(cls, parts: Float[np.ndarray, " all"], prefix: float) -> Prompts:
        """The prompts of a load.

        Args:
            parts: Tokens that are computed of parts of the requests, of weights `PARTS`, where
                their prefixes are found.
            prefix: Tokens of a prefix.
        """
        return cls.found_or_missed(parts, parts + prefix)

    @classmethod
    def found_or_missed(
        cls, found: Float[np.ndarray, " all"], missed: Float[np.ndarray, " all"]
    ) -> Prompts:
        """The prompts of a load.

        Args:
            found: Tokens that are computed of parts of the requests, of weights `PARTS`, where they
                find all that they can.
            missed: The same where they find as little as they can.
        """
        tokens, nothing = np.append(found, missed), np.zeros(len(PARTS))
        order = np.argsort(tokens, kind="stable")
        both = np.append(PARTS, nothing), np.append(nothing, PARTS)
        return cls(tokens[order], both[0][order], both[1][order])

    def where_found(self, share: Scalar) -> Float[AnyArray, " all"]:
        """Tokens that are computed of parts of the requests, a share of which find their prefix.

        Args:
            share: The share.
        """
        weights = share * self.found + (1.0 - share) * self.missed
        ends = jnp.cumsum(weights)
        last = jnp.minimum(ends, _ENDS[:, None])
        first = jnp.maximum(ends - weights, (_ENDS - PARTS)[:, None])
        both = jnp.maximum(last - first, 0.0)
        return jnp.sum(both * self.tokens, axis=1) / jnp.maximum(jnp.sum(both, axis=1), TINY)


class Demand(Pytree):
    """A `Load` as numbers.

    Attributes:
        rate: Arrivals per second, of stages the most; infinite in a closed loop.
        concurrency: Clients in a closed loop. None where no load is of clients, for which less is
            compiled; infinite for an open loop among loads of clients.
        requests: Requests that the clients send in all; None where there are no clients, infinite
            without end.
        warm_up: Time that the first of them wait for the engine to warm up, seconds; None where
            there are no clients.
        input_tokens: Prompt tokens, mean.
        cached_tokens: Of them, found in the prefix cache.
        cached_before: Tokens that were found before one that is computed, mean.
        prefixes: The prefixes that they are of.
        found_or_not: Prompts that find their prefix, and those that do not. None where no load has
            several prefixes or is of conversations, for which less is compiled: all find theirs.
        contexts: What conversations leave in the cache, and how long clients think. None where no
            load has either.
        met_longer: By how many tokens prompts of those that decode are longer than the mean: the
            more, the more long prompts go with long outputs.
        prompts: Prompt tokens that are computed, means of equal parts of the requests, from short
            prompts to long ones.
        longest: The same of equal parts of the last of them.
        prompt_cv2: Squared coefficient of variation of the prompt tokens that are computed.
        output_steps: Steps that give the same requests their tokens, the last of the prompt's among
            them: as many as tokens, or fewer where steps verify drafts.
        tokens_each: Tokens that a step gives a request that decodes, mean.
        output_cv2: Squared coefficient of variation of the steps of all, not of the parts' means.
        evenness: Mean of the lesser of two requests' steps, over the mean.
        arrival_cv2: Squared coefficient of variation of the times between arrivals: of counts that
            in the long run have the same index of dispersion.
        burst_cv2: Squared coefficient of variation of counts in times as short as steps,
        levelled: and whether a router makes it more by chance that levels out servers, 0 or 1.
        routed: Whether a router picks the server by what servers have, 0 or 1.
        follow_cv2: The same of arrivals that have as many follow a request while it lives.
        at_once: Other requests that come at the very time of one, mean.
        loading_s: Time that a request waits for its prefix to come up to the GPU's memory, mean,
            seconds. None where nothing is kept below, for which less is compiled.
        loaded: Share of the requests that do; None where nothing is kept there.
        fetching_s: Of ``loading_s``, what comes before a slot: for the disk; None for nothing.
        fetched: Share of the requests that wait for the disk; None where there is none.
    """

    rate: Scalar
    concurrency: Scalar | None
    requests: Scalar | None
    warm_up: Scalar | None
    input_tokens: Scalar
    cached_tokens: Scalar
    cached_before: Scalar
    prefixes: Prefixes
    found_or_not: Prompts | None
    contexts: Contexts | None
    met_longer: Scalar
    prompts: Float[AnyArray, " strata"]
    longest: Float[AnyArray, " parts"]
    prompt_cv2: Scalar
    output_steps: Float[AnyArray, " strata"]
    tokens_each: Scalar
    output_cv2: Scalar
    evenness: Scalar
    arrival_cv2: Scalar
    burst_cv2: Scalar
    levelled: Scalar
    routed: Scalar
    follow_cv2: Scalar
    at_once: Scalar
    loading_s: Scalar | None = None
    loaded: Scalar | None = None
    fetching_s: Scalar | None = None
    fetched: Scalar | None = None

    @classmethod
    def from_load(cls, load: Load, block_size: int, draft: Draft | None = None) -> Demand:
        """The numbers of a load; only full KV blocks are found in the prefix cache.

        Args:
            load: The load.
            block_size: Tokens of a KV block.
            draft: What proposes tokens; None where each step gives one.
        """
        strata, moments = strata_of(load, block_size), moments_of(load, block_size)
        steps, tokens_each, steps_cv2 = strata.outputs, 1.0, moments.output_cv2
        if draft is not None:
            steps, tokens_each, steps_cv2 = _verifying(strata.outputs, moments.output_cv2, draft)
        parts = np.append(strata.new[:-1], strata.longest)
        prefixes, contexts = _prefixes_of(load, strata.cached), None
        found_or_not = None if prefixes.kept else Prompts.of_parts(parts, strata.cached)
        if load.conversing:
            prefixes = _prefixes_of(load, load.turn_sample.prefix_found(block_size))
            contexts = Contexts.from_load(load, block_size)
            missed = strata_of_missed(load.turn_sample, block_size)
            missed_parts = np.append(missed.new[:-1], missed.longest)
            found_or_not = Prompts.found_or_missed(parts, missed_parts)
        elif load.think_s:
            contexts = Contexts.of_requests(
                float(load.think_s), moments.new, moments.new_cv2, strata.cached
            )
            # Compiled as conversations are.
            found_or_not = Prompts.of_parts(parts, strata.cached)
        return cls(
            rate=float(max((s.rate for s in load.stages), default=load.rate or math.inf)),
            concurrency=None if load.concurrency is None else float(load.concurrency),
            requests=None if load.concurrency is None else float(load.requests or math.inf),
            warm_up=None if load.concurrency is None else load.warm_up_s,
            input_tokens=load.mean_input,
            cached_tokens=strata.cached,
            cached_before=_cached_before(strata, contexts, moments),
            prefixes=prefixes,
            found_or_not=found_or_not,
            contexts=contexts,
            met_longer=moments.new_output / moments.output - moments.new,
            prompts=strata.new,
            longest=strata.longest,
            prompt_cv2=moments.new_cv2,
            output_steps=steps,
            tokens_each=tokens_each,
            output_cv2=steps_cv2,
            evenness=_evenness(np.sort(steps)),
            arrival_cv2=load.arrival_cv2,
            burst_cv2=load.burst_cv2,
            levelled=1.0 * isinstance(load, LevelledLoad),
            routed=1.0 * isinstance(load, RoutedLoad),
            follow_cv2=load.follow_cv2,
            at_once=load.at_once,
        )

    @classmethod
    def stacked(cls, demands: Sequence[Demand]) -> Demand:
        """Loads as one record with a leading axis, in NumPy."""
        if any(demand.concurrency is not None for demand in demands):
            demands = [
                replace(demand, concurrency=math.inf, requests=math.inf, warm_up=0.0)
                if demand.concurrency is None
                else demand
                for demand in demands
            ]
        if any(demand.found_or_not is not None for demand in demands):
            demands = [
                demand
                if demand.contexts is not None and demand.found_or_not is not None
                else replace(
                    demand,
                    found_or_not=Prompts.of_parts(np.asarray(demand.parts), demand.cached_tokens),
                )
                for demand in demands
            ]
        if any(demand.contexts is not None for demand in demands):
            demands = [
                replace(
                    demand,
                    contexts=Contexts.of_requests(
                        0.0,
                        float(demand.new_tokens),
                        float(demand.prompt_cv2),
                        float(demand.cached_tokens),
                    ),
                )
                if demand.contexts is None
                else demand
                for demand in demands
            ]
        stacked: Demand = jax.tree.map(lambda *column: np.array(column), *demands)
        return stacked

    def unending(self) -> Demand:
        """The same requests without limit, so that some always wait and the server is full."""
        endless = jnp.full_like(jnp.asarray(self.rate, float), jnp.inf)
        if self.concurrency is None:
            return replace(self, rate=endless)
        prefixes = replace(self.prefixes, repeated=jnp.ones(()))
        return replace(self, rate=endless, concurrency=endless, requests=endless, prefixes=prefixes)

    def where_found(self, share: Scalar) -> Demand:
        """The same requests, a share of which find their prefix in the cache, and others nothing.

        Args:
            share: The share, of those that would find it in a cache without limit.
        """
        if self.found_or_not is None:
            return self
        if self.contexts is not None:
            return self._where_contexts_are_found(share, self.contexts)
        prefix = self.cached_tokens
        new = self.new_tokens + (1.0 - share) * prefix
        squares = (1.0 + self.prompt_cv2) * self.new_tokens**2
        squares += (1.0 - share) * prefix * (2.0 * self.new_tokens + prefix)
        return self._computing(
            self.found_or_not.where_found(share),
            new,
            squares,
            cached=share * prefix,
            before=share * prefix * self.new_tokens / new,
        )

    def _where_contexts_are_found(self, share: Scalar, contexts: Contexts) -> Demand:
        """The same requests, a share of which find what was said before them."""
        assert self.found_or_not is not None
        new = self.new_tokens + (1.0 - share) * self.evictable_tokens
        squares = share * (1.0 + self.prompt_cv2) * self.new_tokens**2
        squares += (1.0 - share) * contexts.missed_squares
        products = share * contexts.found_products + (1.0 - share) * contexts.missed_products
        return self._computing(
            self.found_or_not.where_found(share),
            new,
            squares,
            cached=contexts.prefix_tokens + share * self.evictable_tokens,
            before=products / new,
        )

    def _computing(
        self,
        parts: Float[AnyArray, " all"],
        new: Scalar,
        squares: Scalar,
        cached: Scalar,
        before: Scalar,
    ) -> Demand:
        """The same requests, other tokens of which are computed.

        Args:
            parts: Tokens that are computed of parts of the requests, of weights `PARTS`.
            new: Their mean over all requests,
            squares: and that of their squares.
            cached: Tokens that are found, mean.
            before: Tokens that are found before one that is computed, mean.
        """
        longest = parts[STRATA - 1 :]
        return replace(
            self,
            cached_tokens=cached,
            cached_before=before,
            prompts=jnp.append(parts[: STRATA - 1], jnp.mean(longest)),
            longest=longest,
            prompt_cv2=jnp.maximum(squares / new**2 - 1.0, 0.0),
        )

    def with_loads(
        self,
        loading_s: Scalar,
        host_hit_rate: Scalar,
        fetching_s: Scalar | None = None,
        disk_hit_rate: Scalar | None = None,
    ) -> Demand:
        """The same requests, which wait for prefixes to come up from tiers below the GPU's memory.

        They are those that find all that they may.

        Args:
            loading_s: For how long, mean over all of them, seconds.
            host_hit_rate: Share of the prompt tokens that come up.
            fetching_s: Of that time, what they wait for the disk; None for none.
            disk_hit_rate: Share of the prompt tokens that come from the disk; None for none.
        """
        tokens = jnp.maximum(self.loadable_tokens, TINY)
        loaded = host_hit_rate * self.input_tokens / tokens
        fetched = None if disk_hit_rate is None else disk_hit_rate * self.input_tokens / tokens
        return replace(
            self, loading_s=loading_s, loaded=loaded, fetching_s=fetching_s, fetched=fetched
        )

    def with_hit_rate(self, rate: Scalar) -> Demand:
        """The same requests, of whose prompt tokens a share is found in the prefix cache.

        Args:
            rate: The share, at most that of the prefixes.
        """
        evictable = jnp.maximum(self.evictable_tokens, TINY)
        found = rate * self.input_tokens
        if self.contexts is not None:
            found -= self.contexts.prefix_tokens
        return self.where_found(jnp.clip(found / evictable, 0.0, 1.0))

    def thinking(self, throughput: Scalar) -> Demand:
        """The same requests, of clients who come by chance the more of them think.

        Of ``n`` clients that each have a request with the chance ``u``, the number that do varies
        by ``n u (1 - u)`` (binomial): ``1 - u`` times its mean.

        Args:
            throughput: Requests that are answered, 1/s.
        """
        if self.contexts is None or self.concurrency is None:
            return self
        thinking = jnp.clip(throughput * self.contexts.think_s / self.clients, 0.0, 1.0)
        own = jnp.where(self.closed, thinking, 0.0)
        return replace(self, arrival_cv2=self.arrival_cv2 + own, burst_cv2=self.burst_cv2 + own)

    def levelled_out(self, coming: Scalar) -> Demand:
        """The same requests, as they come to a server behind a router that levels out servers.

        A server that has just got one has one more than the others, which get the next in turn,
        until one of its own leaves. As many leave as come, at the ends of steps: of the one that a
        prompt waits for, and of its own. After that who comes next comes by chance.

        Args:
            coming: Requests that come in a step, mean.
        """
        by_chance = -jnp.expm1(-2.0 * coming) * self.levelled
        more = by_chance * jnp.maximum(1.0 - self.burst_cv2, 0.0)
        return replace(self, burst_cv2=self.burst_cv2 + more)

    @property
    def closed(self) -> Bool[AnyArray, ""]:
        """Whether it is of clients, in a closed loop."""
        if self.concurrency is None:
            return jnp.zeros((), bool)
        return jnp.isfinite(self.concurrency)

    @property
    def in_rounds(self) -> Bool[AnyArray, ""]:
        """Whether it is of clients who send the next request as soon as they are answered."""
        return self.closed if self.contexts is None else self.closed & (self.think_s <= 0)

    @property
    def think_s(self) -> Scalar:
        """Time from an answer to the next request of a client, seconds."""
        return jnp.zeros(()) if self.contexts is None else jnp.asarray(self.contexts.think_s, float)

    @property
    def evictable_tokens(self) -> Scalar:
        """Cached prompt tokens that others may have taken the blocks of, mean."""
        if self.contexts is None:
            return self.cached_tokens
        return self.cached_tokens - self.contexts.prefix_tokens

    @property
    def loadable_tokens(self) -> Scalar:
        """Prompt tokens that may come up from below the GPU's memory, mean: prefixes, or turns'."""
        if self.contexts is None:
            return self.prefixes.tokens
        return jnp.where(self.contexts.followed > 0, self.evictable_tokens, self.prefixes.tokens)

    @property
    def clients(self) -> Scalar:
        """Clients; one in an open loop, since where infinity is divided no gradient is a number."""
        if self.concurrency is None:
            return jnp.ones(())
        # Clients without a request do not count.
        return jnp.where(self.closed, jnp.minimum(self.concurrency, self.requests), 1.0)

    def most_running(self, slots: Number) -> Scalar:
        """Requests that may run at once: of clients, no more than there are.

        Args:
            slots: Requests that the engine lets run.
        """
        return jnp.maximum(jnp.where(self.closed, jnp.minimum(slots, self.clients), slots), 1.0)

    @property
    def parts(self) -> Float[AnyArray, " all"]:
        """Prompts that are computed, the longest of them in parts: of weights `PARTS`."""
        return jnp.concatenate([jnp.asarray(self.prompts)[:-1], jnp.asarray(self.longest)])

    @property
    def met_tokens(self) -> Scalar:
        """Prompt tokens of those that decode, mean."""
        return self.input_tokens + self.met_longer

    @property
    def new_tokens(self) -> Scalar:
        """Prompt tokens that are computed, mean."""
        return jnp.maximum(self.input_tokens - self.cached_tokens, 1.0)

    @property
    def private_tokens(self) -> Scalar:
        """Prompt tokens beside the prefix, mean."""
        return jnp.maximum(self.input_tokens - self.prefixes.tokens, 1.0)

    @property
    def output_tokens(self) -> Scalar:
        """Generated tokens, mean."""
        steps = self._steps
        return steps + (steps - 1.0) * (self.tokens_each - 1.0)

    @property
    def _steps(self) -> Scalar:
        """Steps that give a request its tokens, mean."""
        return jnp.mean(self.output_steps)

    @property
    def decode_steps(self) -> Scalar:
        """Steps in which a request decodes, mean: its first token comes of its prompt."""
        return decode_steps(self._steps)

    def stamped(self, arrival_cv2: Scalar) -> Scalar:
        """The part of a squared variation of gaps that is due to requests with one timestamp.

        Batches that come by chance have as much more than one as others come with a request.
        """
        return jnp.clip(arrival_cv2 - 1.0, 0.0, self.at_once)

    @property
    def age(self) -> Scalar:
        """Tokens that a decoding request has generated, mean: long ones are met more often."""
        return self.output_tokens * (1.0 + self.output_cv2) / 2

    @property
    def steps_variance(self) -> Scalar:
        """Variance of the steps that give a request its tokens, which are whole numbers."""
        part = self._steps % 1.0
        return jnp.maximum(self.output_cv2 * self._steps**2, part * (1 - part))


def _verifying(
    outputs: Float[np.ndarray, " strata"], output_cv2: float, draft: Draft
) -> tuple[Float[np.ndarray, " strata"], float, float]:
    """Steps that give requests their tokens where each verifies drafts.

    Args:
        outputs: Generated tokens.
        output_cv2: Their squared coefficient of variation.
        draft: What proposes tokens.

    Returns:
        The steps, the first token's among them; tokens of a step in which a request decodes, mean;
        and the squared coefficient of variation of the steps. Of ``n`` tokens by steps of the mean
        ``m`` and the variance ``v`` the number of steps has a variance of ``v n / m^3`` in the long
        run (Cox, Renewal Theory, 1962).
    """
    decoded = decode_steps(outputs)
    verifying = draft.steps(decoded)
    steps = 1.0 + verifying
    mean, tokens = draft.accepted_length, float(np.mean(decoded))
    variance = output_cv2 * float(np.mean(outputs)) ** 2 / mean**2
    variance += draft.variance / mean * tokens / mean**2
    each = tokens / float(np.mean(verifying)) if tokens > 0 else 1.0
    return steps, each, variance / float(np.mean(steps)) ** 2


def _cached_before(strata: Strata, contexts: Contexts | None, moments: RequestMoments) -> float:
    """Tokens that are found before one that is computed, mean."""
    return strata.cached if contexts is None else contexts.found_products / moments.new


def _prefixes_of(load: Load, tokens: float) -> Prefixes:
    """The prefixes of a load, of so many tokens; with lengths each request has its own."""
    given = load.lengths is not None
    popularity = Popularity.parse(load.popularity)
    count, share = popularity.classes(_PRIVATE if given else load.prefixes)
    # The only one is never used least recently.
    kept = given or load.prefixes == 1 or not tokens
    return Prefixes(tokens, count, share, float(popularity.in_turn), float(kept), load.repeated)


def _evenness(ordered: Float[np.ndarray, " strata"]) -> float:
    """Mean of the lesser of two lengths, over the mean length."""
    count = len(ordered)
    larger = (2.0 * np.arange(count)[::-1] + 1) / count**2
    return float(np.sum(larger * ordered) / np.mean(ordered))
