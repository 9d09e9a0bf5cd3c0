/** The problems of a definition. Each leads to its line. */
import type { PipelineProblem } from "../../../build/schema";

export function Problems(
  { problems, onSelect }: { problems: PipelineProblem[]; onSelect: (problem: PipelineProblem) => void },
) {
  return (
    <div class="notice error" role="alert">
      <p>The pipeline cannot run.</p>
      <ul class="problems">
        {problems.map((problem) => (
          <li key={`${problem.line}:${problem.message}`}>
            {problem.line != null && (
              <button type="button" onClick={() => onSelect(problem)}>Line {problem.line}</button>
            )}
            <span>{problem.message}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
