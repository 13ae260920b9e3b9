import com.google.api.client.googleapis.MethodOverride;
import com.google.api.client.googleapis.batch.BatchRequest;
import com.google.api.client.googleapis.batch.json.JsonBatchCallback;
import com.google.api.client.googleapis.json.GoogleJsonError;
import com.google.api.client.http.HttpHeaders;
import com.google.api.client.http.HttpResponseException;
import com.google.api.client.http.javanet.NetHttpTransport;
import com.google.api.client.json.jackson2.JacksonFactory;
import com.google.api.services.ml.v1.CloudMachineLearningEngine;
import com.google.api.services.ml.v1.model.*;
import java.util.Arrays;
import java.util.List;

/** What users of Google's Java client do, a line for each answer: GoogleClient ROOT MODEL_DIR. */
public class GoogleClient {
  static final String PARENT = "projects/java", NAME = PARENT + "/models/m";

  public static void main(String[] arguments) throws Exception {
    CloudMachineLearningEngine ml =
        new CloudMachineLearningEngine.Builder(
                new NetHttpTransport(), JacksonFactory.getDefaultInstance(), new MethodOverride())
            .setRootUrl(arguments[0] + "/")
            .setApplicationName("tests")
            .build();
    CloudMachineLearningEngine.Projects.Models models = ml.projects().models();
    models.create(PARENT, new GoogleCloudMlV1Model().setName("m").setDescription("made")).execute();
    GoogleCloudMlV1Version version =
        new GoogleCloudMlV1Version()
            .setName("v")
            .setDeploymentUri(arguments[1])
            .setFramework("SCIKIT_LEARN")
            .setRuntimeVersion("2.11");
    GoogleLongrunningOperation operation = models.versions().create(NAME, version).execute();
    while (operation.getDone() == null || !operation.getDone()) {
      Thread.sleep(100);
      operation = ml.projects().operations().get(operation.getName()).execute();
    }
    System.out.println("error " + operation.getError());
    models
        .patch(NAME, new GoogleCloudMlV1Model().setDescription("changed"))
        .setUpdateMask("description")
        .execute();
    System.out.println("description " + models.get(NAME).setFields("description").execute());
    List<List<Double>> rows = Arrays.asList(Arrays.asList(1.0, 1.0), Arrays.asList(2.0, 3.0));
    GoogleCloudMlV1PredictRequest request = new GoogleCloudMlV1PredictRequest();
    request.set("instances", rows);
    System.out.println("predictions " + ml.projects().predict(NAME, request).execute().get("predictions"));
    StringBuilder filter = new StringBuilder("name:m");
    for (int number = 0; filter.length() < 2500; number++) {
      filter.append(" OR name:absentabsentabsentabsentabsentabsentabsent").append(number);
    }
    System.out.println(
        "listed " + models.list(PARENT).setFilter(filter.toString()).execute().getModels().size());
    GoogleIamV1Policy policy = models.getIamPolicy(NAME).execute();
    policy =
        models.setIamPolicy(NAME, new GoogleIamV1SetIamPolicyRequest().setPolicy(policy)).execute();
    System.out.println("policy " + policy.keySet());
    BatchRequest batch = ml.batch();
    JsonBatchCallback<GoogleCloudMlV1Model> note =
        new JsonBatchCallback<GoogleCloudMlV1Model>() {
          public void onSuccess(GoogleCloudMlV1Model model, HttpHeaders headers) {
            System.out.println("batch " + model.getName());
          }

          public void onFailure(GoogleJsonError error, HttpHeaders headers) {
            System.out.println("batch " + error.getCode());
          }
        };
    models.get(NAME).queue(batch, note);
    models.get(PARENT + "/models/absent").queue(batch, note);
    models.create(PARENT, new GoogleCloudMlV1Model().setName("n")).queue(batch, note);
    batch.execute();
    try {
      ml.projects().explain(PARENT + "/models/m", new GoogleCloudMlV1ExplainRequest()).execute();
    } catch (HttpResponseException error) {
      System.out.println("not offered " + error.getStatusCode());
    }
  }
}
